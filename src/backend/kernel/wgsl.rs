//! The generated parts of WGSL sources.

use super::epilogue::Epilogue;
use super::helpers::HELPERS;
use super::preprocess::lines;
use super::printer::Printer;
use super::spec::Elem;
use super::{Arg, FOLDED, FieldTy, KernelSpec, MASK_MIN, Ty};
use crate::tensor::DType;
use std::fmt::Write as _;

/// The entry point of a WGSL text whose work-items are numbered along one axis.
pub const LINEAR: &str = "(@builtin(global_invocation_id) id: vec3<u32>) {";
/// The entry point for a grid too long for one axis, folded over two.
const FOLDED_ENTRY: &str =
    "(@builtin(global_invocation_id) folded: vec3<u32>, @builtin(num_workgroups) folds: vec3<u32>) {
  let id = vec3<u32>(folded.x + folded.y * folds.x * WG, 0u, 0u);";

/// Functions for NaN and infinities. They test bits.
const NOT_FINITE: &str = "\
fn infinity() -> f32 { return bitcast<f32>(0x7f800000u | hidden_zero()); }
fn nan() -> f32 { return bitcast<f32>(0x7fc00000u | hidden_zero()); }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }";

/// The ends of the range of elements, and the larger and the smaller of two. NaN propagates.
const FLOAT_ENDS: &str = "\
fn least() -> f32 { return bitcast<f32>(0xff800000u | hidden_zero()); }
fn greatest() -> f32 { return infinity(); }
fn larger(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }
fn smaller(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }";
const INTEGER_ENDS: &str = "\
fn least() -> i32 { return -2147483647 - 1; }
fn greatest() -> i32 { return 2147483647; }
fn larger(a: i32, b: i32) -> i32 { return max(a, b); }
fn smaller(a: i32, b: i32) -> i32 { return min(a, b); }";
const LONG_ENDS: &str = "\
fn least() -> i64 { return i64(-9223372036854775807 - 1); }
fn greatest() -> i64 { return 9223372036854775807li; }
fn larger(a: i64, b: i64) -> i64 { return max(a, b); }
fn smaller(a: i64, b: i64) -> i64 { return min(a, b); }";

pub(super) struct Wgsl;

impl Printer for Wgsl {
    fn prelude(&self, spec: &KernelSpec, _flags: &[String]) -> String {
        let mut s = spec.constants_wgsl();
        s += &spec.params_wgsl();
        for (i, (arg, dtype)) in spec.bound().enumerate() {
            s += &spec.binding_wgsl(i + 1, arg, dtype);
        }
        for (arg, dtype) in spec.args().zip(&spec.operands) {
            if let Some(dtype) = dtype.filter(|_| arg.ty.has_accessors()) {
                s += &spec.accessors_wgsl(arg, dtype);
            }
        }
        s
    }

    fn epilogue(&self, spec: &KernelSpec, epilogue: &Epilogue, y: &Arg, types: &[DType]) -> String {
        epilogue.accessors_wgsl(y.name, types, spec.elem().wgsl(), y.ty == Ty::Single)
    }

    /// Puts extensions first, as WGSL requires, and adds the helpers that the source calls.
    fn join(&self, spec: &KernelSpec, generated: String, body: &str) -> String {
        let (enabled, rest): (Vec<_>, Vec<_>) = body.lines().partition(|l| l.starts_with("enable "));
        let own = generated + &lines(&rest);
        let called = HELPERS
            .iter()
            .filter(|(name, ..)| own.contains(&format!("{name}(")));
        let wide = spec.epilogue.as_ref().is_some_and(|e| e.wide);
        let [integer, unsigned] = if wide { ["i64", "u64"] } else { ["i32", "u32"] };
        let named = |text: &str| text.replace("INTEGER", integer).replace("UNSIGNED", unsigned);
        let helpers: String = called.map(|(.., wgsl)| named(wgsl)).collect();
        let text = lines(&enabled) + &helpers + &own;
        if spec.defines.contains_key(FOLDED) {
            text.replace(LINEAR, FOLDED_ENTRY)
        } else {
            text
        }
    }
}

impl KernelSpec {
    fn constants_wgsl(&self) -> String {
        let mut s = format!(
            "const WG: u32 = {}u;\nconst MASK_MIN: f32 = {MASK_MIN:.1};\n",
            self.workgroup
        );
        for (k, v) in &self.defines {
            let _ = if *v < 0 {
                writeln!(s, "const {k}: i32 = {v};")
            } else {
                writeln!(s, "const {k}: u32 = {v}u;")
            };
        }
        let elem = self.elem();
        let ends = match elem {
            Elem::Float => FLOAT_ENDS,
            Elem::Int => INTEGER_ENDS,
            Elem::Long => LONG_ENDS,
        };
        let elem = elem.wgsl();
        let _ = writeln!(s, "alias ELEM = {elem};\n{ends}");
        s
    }

    fn params_wgsl(&self) -> String {
        let fields = self.fields().map(|(name, ty)| {
            let ty = match ty {
                FieldTy::U32 => "u32",
                FieldTy::I32 => "i32",
                FieldTy::F32 => "f32",
            };
            format!(" {name}: {ty},")
        });
        let fields: String = fields.collect();
        let mut s = format!("struct Params {{{fields} }}\n@group(0) @binding(0) var<uniform> p: Params;\n");
        // A zero that compilers cannot know. They may assume that floats are finite, so NaN and
        // infinities must not be constants.
        let count = self.fields().find(|(_, ty)| *ty == FieldTy::U32);
        let zero = count.map_or_else(|| "0u".to_owned(), |(name, _)| format!("p.{name} >> 31u"));
        let _ = writeln!(s, "fn hidden_zero() -> u32 {{ return {zero}; }}\n{NOT_FINITE}");
        s
    }

    fn binding_wgsl(&self, binding: usize, arg: &Arg, dtype: DType) -> String {
        let ty = match (arg.ty, dtype) {
            (Ty::Uint, _) | (Ty::Elem, DType::F16 | DType::I8 | DType::U8) => "u32",
            (Ty::Single, DType::F16) => "atomic<u32>",
            (Ty::Uint4, _) => "vec4<u32>",
            (Ty::Half4, _) => "vec4<f16>",
            (_, other) => Elem::of(other).wgsl(),
        };
        let access = match arg.role.is_weight() {
            true => "read",
            false => "read_write",
        };
        let name = arg.name;
        format!("@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;\n")
    }

    /// Functions that load and store elements of an operand.
    fn accessors_wgsl(&self, arg: &'static Arg, dtype: DType) -> String {
        let (n, m, put) = (arg.name, self.storage_of(arg), self.store());
        let t = Elem::of(dtype).wgsl();
        if let DType::I8 | DType::U8 = dtype {
            let word = if dtype == DType::I8 { "i32" } else { "" };
            return format!(
                "fn {n}_at(i: u32) -> i32 {{ return i32({word}({m}[i >> 2u] << (24u - (i & 3u) * 8u)) >> 24u); }}\n"
            );
        }
        if arg.ty == Ty::Single && dtype == DType::F16 {
            return format!(
                "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ atomicStore(&{m}[i], pack2x16float(v)); }}\n\
                 fn {n}_{put}4(i: u32, v: vec4<f32>) {{ {n}_{put}2(2u * i, v.xy); {n}_{put}2(2u * i + 1u, v.zw); }}\n\
                 fn {n}_{put}(i: u32, v: f32) {{ let s = (i & 1u) * 16u; atomicAnd(&{m}[i >> 1u], 0xFFFF0000u >> s); atomicOr(&{m}[i >> 1u], pack2x16float(vec2<f32>(v, 0.0)) << s); }}\n"
            );
        }
        let mut s = String::new();
        if arg.ty == Ty::Single {
            let _ = writeln!(s, "fn {n}_{put}(i: u32, v: {t}) {{ {m}[i] = v; }}");
        }
        if arg.role.writes() {
            s += &match dtype {
                DType::F16 => format!(
                    "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ {m}[i] = pack2x16float(v); }}\n\
                     fn {n}_{put}4(i: u32, v: vec4<f32>) {{ {m}[2u * i] = pack2x16float(v.xy); {m}[2u * i + 1u] = pack2x16float(v.zw); }}\n"
                ),
                _ => format!(
                    "fn {n}_{put}2(i: u32, v: vec2<{t}>) {{ {m}[2u * i] = v.x; {m}[2u * i + 1u] = v.y; }}\n\
                     fn {n}_{put}4(i: u32, v: vec4<{t}>) {{ {m}[4u * i] = v.x; {m}[4u * i + 1u] = v.y; {m}[4u * i + 2u] = v.z; {m}[4u * i + 3u] = v.w; }}\n"
                ),
            };
        }
        if arg.role.reads() && arg.ty == Ty::Elem {
            s += &match dtype {
                DType::F16 => format!(
                    "fn {n}_at(i: u32) -> f32 {{ let v = unpack2x16float({m}[i >> 1u]); return select(v.x, v.y, (i & 1u) == 1u); }}\n\
                     fn {n}_at2(i: u32) -> vec2<f32> {{ return unpack2x16float({m}[i]); }}\n\
                     fn {n}_at4(i: u32) -> vec4<f32> {{ return vec4<f32>(unpack2x16float({m}[2u * i]), unpack2x16float({m}[2u * i + 1u])); }}\n"
                ),
                _ => format!(
                    "fn {n}_at(i: u32) -> {t} {{ return {m}[i]; }}\n\
                     fn {n}_at2(i: u32) -> vec2<{t}> {{ return vec2<{t}>({m}[2u * i], {m}[2u * i + 1u]); }}\n\
                     fn {n}_at4(i: u32) -> vec4<{t}> {{ return vec4<{t}>({m}[4u * i], {m}[4u * i + 1u], {m}[4u * i + 2u], {m}[4u * i + 3u]); }}\n"
                ),
            };
        }
        s
    }
}
