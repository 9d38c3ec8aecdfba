//! The generated parts of OpenCL C sources.

use super::epilogue::Epilogue;
use super::image::{ImageKind, Pixel, ROW_PIXELS};
use super::printer::Printer;
use super::spec::Elem;
use super::subgroup_size::SubgroupSize;
use super::{Arg, FOLDED, FieldTy, KernelSpec, MASK_MIN, Ty};
use crate::tensor::DType;
use std::ffi::CStr;
use std::fmt::Write as _;

/// Compiler options for OpenCL C. Phone drivers support 1.2; math stays exact except for fused
/// multiply-add. Without `-w`, PoCL's compiler prints the number of warnings to standard error.
pub const BUILD_OPTIONS: &CStr = c"-cl-std=CL1.2 -cl-mad-enable -w";

/// Token pasting in OpenCL C.
pub(crate) const CAT: &str = "#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n";

/// Loads and stores of halves in OpenCL C, used by the accessors.
const HALF: &str = include_str!("../../../cl/common/half.cl");

/// The larger and the smaller of two elements. NaN propagates.
const LARGER: &str = "\
inline ELEM larger(ELEM a, ELEM b) { return a != a || a > b ? a : b; }
inline ELEM smaller(ELEM a, ELEM b) { return a != a || a < b ? a : b; }";

pub(super) struct OpenClC;

impl Printer for OpenClC {
    fn options(&self) -> &'static CStr {
        BUILD_OPTIONS
    }

    fn flags(&self, spec: &KernelSpec) -> Result<Vec<String>, String> {
        let mut flags = Vec::new();
        for (i, kind) in &spec.images {
            let arg = spec.kernel.args.get(*i);
            let dtype = spec.operands.get(*i).copied().flatten();
            let pixel = arg.zip(dtype).and_then(|(a, d)| Pixel::of(a.ty, d));
            let reads = arg.is_some_and(|a| !a.role.writes());
            match (arg, pixel) {
                (Some(arg), Some(_)) if reads && spec.in_place != Some(*i) => {
                    flags.push(format!("IMAGE_{}", arg.name.to_uppercase()));
                }
                _ => return Err(format!("operand {i} cannot be read through {kind}")),
            }
        }
        Ok(flags)
    }

    fn prelude(&self, spec: &KernelSpec, flags: &[String]) -> String {
        let subgroup = spec.subgroup_size();
        let mut s = subgroup.map_or("", SubgroupSize::pragma).to_owned();
        s += &spec.defines_cl(flags);
        s += &spec.params_cl();
        if spec.bound().any(|(a, d)| a.ty.has_accessors() && d == DType::F16) {
            if spec.kernel.finite_halves {
                s.push_str("#define FINITE_HALF\n");
            }
            s.push_str(HALF);
        }
        let mut by_image = Vec::new();
        for ((arg, _), image) in spec.bound().zip(spec.bound_images()) {
            if let Some((kind, pixel)) = image {
                s += &image_reader_cl(arg.name, kind, pixel);
                by_image.push(arg.name);
            }
        }
        for (arg, dtype) in spec.args().zip(&spec.operands) {
            if let Some(dtype) = dtype.filter(|_| arg.ty.has_accessors() && !by_image.contains(&arg.name)) {
                s += &spec.accessors_cl(arg, dtype);
            }
        }
        s + &spec.entry_cl(subgroup)
    }

    fn epilogue(&self, spec: &KernelSpec, epilogue: &Epilogue, y: &Arg, types: &[DType]) -> String {
        epilogue.accessors_cl(y.name, types, spec.elem().cl())
    }
}

impl KernelSpec {
    /// The operands as OpenCL C declares them.
    fn signature_cl(&self) -> Vec<String> {
        let mut signature = Vec::new();
        for ((arg, dtype), image) in self.bound().zip(self.bound_images()) {
            if let Some((kind, _)) = image {
                signature.push(format!("read_only {kind} {}", arg.name));
                continue;
            }
            let base = match (arg.ty, dtype) {
                (Ty::Uint, _) => "uint",
                (Ty::Uint4, _) => "uint4",
                (Ty::Half4, _) => "uint2",
                (_, DType::F16) => "half",
                (_, DType::I8) => "char",
                (_, DType::U8) => "uchar",
                (_, other) => Elem::of(other).cl(),
            };
            let shared = self.shared().is_some_and(|a| a.name == arg.name);
            let writes = arg.role.writes() || shared;
            let constant = if writes { "" } else { "const " };
            signature.push(format!("__global {constant}{base} *restrict {}", arg.name));
        }
        signature
    }

    fn defines_cl(&self, names: &[String]) -> String {
        let mut s = format!(
            "#define WG {}\n{CAT}#define MASK_MIN ({MASK_MIN:.1}f)\n",
            self.workgroup
        );
        for (k, v) in &self.defines {
            let _ = writeln!(s, "#define {k} {v}");
        }
        if self.defines.contains_key(FOLDED) {
            s.push_str(
                "#define get_global_id(axis) (get_global_id(0) + get_global_id(1) * get_global_size(0))\n",
            );
        }
        for n in names.iter().filter(|n| !self.defines.contains_key(n.as_str())) {
            let _ = writeln!(s, "#define {n}");
        }
        let elem = self.elem();
        let [least, greatest] = match elem {
            Elem::Float => ["(-INFINITY)", "INFINITY"],
            Elem::Int => ["(-2147483647 - 1)", "2147483647"],
            Elem::Long => ["(-9223372036854775807L - 1)", "9223372036854775807L"],
        };
        let elem = elem.cl();
        let _ = writeln!(
            s,
            "#define ELEM {elem}\n#define ELEM2 {elem}2\n#define ELEM4 {elem}4\n#define LEAST {least}\n\
             #define GREATEST {greatest}\n{LARGER}"
        );
        s
    }

    fn params_cl(&self) -> String {
        let fields = self.fields().map(|(name, ty)| {
            let ty = match ty {
                FieldTy::U32 => "uint",
                FieldTy::I32 => "int",
                FieldTy::F32 => "float",
            };
            format!(" {ty} {name};")
        });
        format!("typedef struct {{{} }} Params;\n", fields.collect::<String>())
    }

    /// Macros that load and store elements of an operand. Views are aligned for vector access.
    /// `vload` and `vstore` do not assume that, and GPU compilers then move single elements.
    fn accessors_cl(&self, arg: &'static Arg, dtype: DType) -> String {
        let (n, m, put) = (arg.name, self.storage_of(arg), self.store());
        let t = Elem::of(dtype).cl();
        if matches!(dtype, DType::I8 | DType::U8) {
            return format!("#define {n}_at(i) ((int){m}[i])\n");
        }
        let mut s = String::new();
        if arg.role.writes() {
            s += &match dtype {
                DType::F16 => format!(
                    "#define {n}_{put}2(i, v) half_store_pair(v, (size_t)(i), {m})\n\
                     #define {n}_{put}4(i, v) half_store_four(v, (size_t)(i), {m})\n\
                     #define {n}_{put}(i, v) half_store(v, (size_t)(i), {m})\n\
                     #define {n}_{put}_run(n, i, v) CAT(half_store, n)(v, 0, {m} + (i))\n"
                ),
                _ => format!(
                    "#define {n}_{put}2(i, v) (((__global {t}2 *){m})[i] = (v))\n\
                     #define {n}_{put}4(i, v) (((__global {t}4 *){m})[i] = (v))\n\
                     #define {n}_{put}(i, v) ({m}[i] = (v))\n\
                     #define {n}_{put}_run(n, i, v) CAT(vstore, n)(v, 0, {m} + (i))\n"
                ),
            };
        }
        if arg.role.reads() && arg.ty == Ty::Elem {
            s += &match dtype {
                DType::F16 => format!(
                    "#define {n}_run(n, i) CAT(half_load, n)(0, {m} + (i))\n\
                     #define {n}_at(i) half_load((size_t)(i), {m})\n\
                     #define {n}_at2(i) half_load_pair((size_t)(i), {m})\n\
                     #define {n}_at4(i) half_load_four((size_t)(i), {m})\n"
                ),
                _ => format!(
                    "#define {n}_run(n, i) CAT(vload, n)(0, {m} + (i))\n\
                     #define {n}_at(i) ({m}[i])\n\
                     #define {n}_at2(i) (((const __global {t}2 *){m})[i])\n\
                     #define {n}_at4(i) (((const __global {t}4 *){m})[i])\n"
                ),
            };
        }
        s
    }

    /// The macro with which the kernel's function begins.
    fn entry_cl(&self, subgroup: Option<SubgroupSize>) -> String {
        let mut signature = self.signature_cl();
        signature.push("const Params p".to_owned());
        let signature = signature.join(", ");
        let subgroup = subgroup.map_or_else(String::new, SubgroupSize::attribute);
        format!(
            "#define KERNEL __kernel {subgroup}__attribute__((reqd_work_group_size(WG, 1, 1))) void {}({signature})\n",
            self.kernel.name
        )
    }
}

/// The macro that reads four elements of an operand through an image.
fn image_reader_cl(name: &str, kind: ImageKind, pixel: Pixel) -> String {
    let read = match pixel {
        Pixel::Words => "read_imageui",
        _ => "read_imagef",
    };
    let place = match kind {
        ImageKind::Image1dBuffer => "(int)(i)".to_owned(),
        ImageKind::Image2d => format!("(int2)((uint)(i) % {ROW_PIXELS}u, (uint)(i) / {ROW_PIXELS}u)"),
    };
    format!("#define {name}_at4(i) {read}({name}, {place})\n")
}
