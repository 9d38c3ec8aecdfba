//! WGSL texts against their descriptors.

use super::{languages, specs};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use transformer_lite::unstable::backend::kernel::{Feature, FieldTy, KernelSpec, Language, Ty};
use transformer_lite::unstable::tensor::DType;

/// Name of a WGSL scalar.
fn scalar(module: &naga::Module, ty: naga::Handle<naga::Type>) -> String {
    match &module.types[ty].inner {
        naga::TypeInner::Scalar(naga::Scalar::I64) => "i64".to_owned(),
        naga::TypeInner::Scalar(naga::Scalar { kind, width: 4 }) => match kind {
            naga::ScalarKind::Uint => "u32".to_owned(),
            naga::ScalarKind::Sint => "i32".to_owned(),
            naga::ScalarKind::Float => "f32".to_owned(),
            other => format!("{other:?}"),
        },
        naga::TypeInner::Vector { size, scalar }
            if [naga::Scalar::U32, naga::Scalar::F32].contains(scalar) =>
        {
            let kind = if *scalar == naga::Scalar::U32 {
                "u32"
            } else {
                "f32"
            };
            format!("vec{}<{kind}>", *size as u8)
        }
        naga::TypeInner::Vector {
            size: naga::VectorSize::Quad,
            scalar:
                naga::Scalar {
                    kind: naga::ScalarKind::Float,
                    width: 2,
                },
        } => "vec4<f16>".to_owned(),
        naga::TypeInner::Atomic(naga::Scalar::U32) => "atomic u32".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A global variable of a module: number, name, access, and the type of its elements.
type Binding = (u32, String, &'static str, String);

#[test]
fn wgsl_validates_and_its_bindings_are_the_descriptors() {
    let in_wgsl = |spec: &&KernelSpec| languages(spec.kernel).any(|l| l == Language::Wgsl);
    for spec in specs().iter().filter(in_wgsl) {
        let module = validated(spec);
        let [entry] = module.entry_points.as_slice() else {
            panic!("{spec}: one entry point expected")
        };
        assert_eq!(entry.name, spec.kernel.name);
        assert_eq!(entry.workgroup_size, [spec.workgroup, 1, 1], "{spec}");
        let (mut found, mut local) = (Vec::new(), 0);
        for (_, v) in module.global_variables.iter() {
            let inner = &module.types[v.ty].inner;
            match (v.space, &v.binding) {
                (naga::AddressSpace::WorkGroup, None) => local += inner.size(module.to_ctx()),
                (naga::AddressSpace::Private, None) => {}
                _ => found.push(binding(spec, &module, v)),
            }
        }
        found.sort();
        assert_eq!(found, declared(spec), "{spec}");
        // What every WebGPU implementation has, and what GPUs with fast work-group memory or matrix
        // units have.
        let large = spec.uses(Language::Wgsl, Feature::TensorCores)
            || ["attention_row", "matvec_e0m_mma"].contains(&spec.kernel.name);
        let most = if large { 46 << 10 } else { 16_384 };
        assert!(local <= most, "{spec} takes {local} bytes of work-group memory");
    }
}

fn validated(spec: &KernelSpec) -> naga::Module {
    let text = spec.expand(Language::Wgsl).unwrap();
    let module =
        naga::front::wgsl::parse_str(&text).unwrap_or_else(|e| panic!("{spec}: {}", e.emit_to_string(&text)));
    // `unpack2x16float` is core WGSL; naga counts it apart for the sake of old OpenGL.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    for (feature, capability) in [
        (
            Feature::TensorCores,
            Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP_BARRIER,
        ),
        (Feature::Subgroups, Capabilities::SUBGROUP),
        (Feature::F16, Capabilities::SHADER_FLOAT16),
    ] {
        capabilities.set(capability, spec.uses(Language::Wgsl, feature));
    }
    capabilities.set(Capabilities::SHADER_INT64, spec.is_wide());
    Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{spec}: {}", e.emit_to_string(&text)));
    module
}

/// The bindings of the descriptor.
fn declared(spec: &KernelSpec) -> Vec<Binding> {
    let mut all = vec![(0, "p".to_owned(), "uniform", "Params".to_owned())];
    for (i, (arg, dtype)) in (1..).zip(spec.bound()) {
        let access = if arg.role.is_weight() {
            "read"
        } else {
            "read_write"
        };
        let ty = match (arg.ty, dtype) {
            (Ty::Uint, _) | (Ty::Elem, DType::F16 | DType::I8 | DType::U8) => "u32",
            (Ty::Single, DType::F16) => "atomic u32",
            (Ty::Uint4, _) => "vec4<u32>",
            (Ty::Half4, _) => "vec4<f16>",
            (_, DType::F32) => "f32",
            (_, DType::I64) => "i64",
            (_, _) => "i32",
        };
        all.push((i, arg.name.to_owned(), access, ty.to_owned()));
    }
    all
}

/// The binding that a variable of the module is. Parameters are those of the descriptor.
fn binding(spec: &KernelSpec, module: &naga::Module, v: &naga::GlobalVariable) -> Binding {
    let inner = &module.types[v.ty].inner;
    let name = v.name.clone().unwrap_or_default();
    match (v.space, &v.binding, inner) {
        (naga::AddressSpace::Uniform, Some(b), naga::TypeInner::Struct { members, .. }) => {
            let fields = members
                .iter()
                .map(|m| (m.name.clone().unwrap_or_default(), scalar(module, m.ty)));
            let declared = spec.fields().map(|(name, ty)| {
                let ty = match ty {
                    FieldTy::U32 => "u32",
                    FieldTy::I32 => "i32",
                    FieldTy::F32 => "f32",
                };
                (name.to_owned(), ty.to_owned())
            });
            assert_eq!(fields.collect::<Vec<_>>(), declared.collect::<Vec<_>>(), "{spec}");
            for (i, m) in (0u32..).zip(members) {
                assert_eq!(m.offset, 4 * i, "{spec}: {:?}", m.name);
            }
            (b.binding, name, "uniform", "Params".to_owned())
        }
        (naga::AddressSpace::Storage { access }, Some(b), naga::TypeInner::Array { base, size, .. }) => {
            assert_eq!((b.group, *size), (0, naga::ArraySize::Dynamic), "{spec}: {name}");
            let writes = access.contains(naga::StorageAccess::STORE);
            let access = if writes { "read_write" } else { "read" };
            (b.binding, name, access, scalar(module, *base))
        }
        other => panic!("{spec}: variable {name} in {other:?}"),
    }
}
