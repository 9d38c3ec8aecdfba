//! The generated parts of WGSL sources.

use super::{FieldTy, KernelSpec, MASK_MIN, Ty};
use crate::tensor::DType;
use std::fmt::Write as _;

/// The entry point of a WGSL text whose work-items are numbered along one axis.
pub const LINEAR: &str = "(@builtin(global_invocation_id) id: vec3<u32>) {";
/// The entry point for a grid too long for one axis, folded over two.
pub(super) const FOLDED_ENTRY: &str =
    "(@builtin(global_invocation_id) folded: vec3<u32>, @builtin(num_workgroups) folds: vec3<u32>) {
  let id = vec3<u32>(folded.x + folded.y * folds.x * WG, 0u, 0u);";

impl KernelSpec {
    pub(super) fn elem_wgsl(&self) -> &'static str {
        if self.elem_is_float() { "f32" } else { "i32" }
    }

    pub(super) fn prelude_wgsl(&self) -> String {
        let mut s = String::new();
        let _ = writeln!(s, "const WG: u32 = {}u;", self.workgroup);
        let _ = writeln!(s, "const MASK_MIN: f32 = {MASK_MIN:.1};");
        for (k, v) in &self.defines {
            let _ = if *v < 0 {
                writeln!(s, "const {k}: i32 = {v};")
            } else {
                writeln!(s, "const {k}: u32 = {v}u;")
            };
        }
        let elem = self.elem_wgsl();
        let least = if elem == "f32" {
            "-3.4028235e38"
        } else {
            "-2147483647 - 1"
        };
        let _ = writeln!(s, "alias ELEM = {elem};\nconst LEAST: {elem} = {least};");
        s.push_str("struct Params {");
        for (name, ty) in self.fields() {
            let ty = match ty {
                FieldTy::U32 => "u32",
                FieldTy::I32 => "i32",
                FieldTy::F32 => "f32",
            };
            let _ = write!(s, " {name}: {ty},");
        }
        s.push_str(" }\n@group(0) @binding(0) var<uniform> p: Params;\n");
        for (i, (arg, dtype)) in self.bound().enumerate() {
            let ty = match (arg.ty, dtype) {
                (Ty::Elem, DType::F16) if self.is_vec4(arg) => "vec2<u32>",
                (Ty::Elem, DType::F32) if self.is_vec4(arg) => "vec4<f32>",
                (Ty::Elem, _) if self.is_vec4(arg) => "vec4<i32>",
                (Ty::Uint, _) | (Ty::Elem, DType::F16) => "u32",
                (Ty::Single, DType::F16) => "atomic<u32>",
                (Ty::Uint4, _) => "vec4<u32>",
                (Ty::Half4, _) => "vec4<f16>",
                (_, DType::F32) => "f32",
                (_, _) => "i32",
            };
            let access = if arg.role.is_weight() {
                "read"
            } else {
                "read_write"
            };
            let _ = writeln!(
                s,
                "@group(0) @binding({}) var<storage, {access}> {}: array<{ty}>;",
                i + 1,
                arg.name
            );
        }
        let put = self.store();
        for (arg, dtype) in self.args().zip(&self.operands) {
            let Some(dtype) = dtype.filter(|_| arg.ty.has_accessors()) else {
                continue;
            };
            let n = arg.name;
            let m = self.storage_of(arg);
            let t = if dtype.is_float() { "f32" } else { "i32" };
            if self.is_vec4(arg) {
                let _ = match dtype {
                    DType::F16 => writeln!(
                        s,
                        "fn {n}_at4(i: u32) -> vec4<f32> {{ let v = {m}[i]; return vec4<f32>(unpack2x16float(v.x), unpack2x16float(v.y)); }}"
                    ),
                    _ => writeln!(s, "fn {n}_at4(i: u32) -> vec4<{t}> {{ return {m}[i]; }}"),
                };
                continue;
            }
            if arg.ty == Ty::Single && dtype == DType::F16 {
                let _ = writeln!(
                    s,
                    "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ atomicStore(&{m}[i], pack2x16float(v)); }}\nfn {n}_{put}4(i: u32, v: vec4<f32>) {{ {n}_{put}2(2u * i, v.xy); {n}_{put}2(2u * i + 1u, v.zw); }}"
                );
                let _ = writeln!(
                    s,
                    "fn {n}_{put}(i: u32, v: f32) {{ let s = (i & 1u) * 16u; atomicAnd(&{m}[i >> 1u], 0xFFFF0000u >> s); atomicOr(&{m}[i >> 1u], pack2x16float(vec2<f32>(v, 0.0)) << s); }}"
                );
                continue;
            }
            if arg.ty == Ty::Single {
                let _ = writeln!(s, "fn {n}_{put}(i: u32, v: {t}) {{ {m}[i] = v; }}");
            }
            if arg.role.writes() {
                if dtype == DType::F16 {
                    let _ = writeln!(
                        s,
                        "fn {n}_{put}2(i: u32, v: vec2<f32>) {{ {m}[i] = pack2x16float(v); }}\nfn {n}_{put}4(i: u32, v: vec4<f32>) {{ {m}[2u * i] = pack2x16float(v.xy); {m}[2u * i + 1u] = pack2x16float(v.zw); }}"
                    );
                } else {
                    let _ = writeln!(
                        s,
                        "fn {n}_{put}2(i: u32, v: vec2<{t}>) {{ {m}[2u * i] = v.x; {m}[2u * i + 1u] = v.y; }}\nfn {n}_{put}4(i: u32, v: vec4<{t}>) {{ {m}[4u * i] = v.x; {m}[4u * i + 1u] = v.y; {m}[4u * i + 2u] = v.z; {m}[4u * i + 3u] = v.w; }}"
                    );
                }
            }
            if arg.role.reads() && arg.ty == Ty::Elem {
                if dtype == DType::F16 {
                    let _ = writeln!(
                        s,
                        "fn {n}_at(i: u32) -> f32 {{ let v = unpack2x16float({m}[i >> 1u]); return select(v.x, v.y, (i & 1u) == 1u); }}\nfn {n}_at2(i: u32) -> vec2<f32> {{ return unpack2x16float({m}[i]); }}\nfn {n}_at4(i: u32) -> vec4<f32> {{ return vec4<f32>(unpack2x16float({m}[2u * i]), unpack2x16float({m}[2u * i + 1u])); }}"
                    );
                } else {
                    let _ = writeln!(
                        s,
                        "fn {n}_at(i: u32) -> {t} {{ return {m}[i]; }}\nfn {n}_at2(i: u32) -> vec2<{t}> {{ return vec2<{t}>({m}[2u * i], {m}[2u * i + 1u]); }}\nfn {n}_at4(i: u32) -> vec4<{t}> {{ return vec4<{t}>({m}[4u * i], {m}[4u * i + 1u], {m}[4u * i + 2u], {m}[4u * i + 3u]); }}"
                    );
                }
            }
        }
        s
    }
}
