//! Kernel texts against their descriptors: both languages of every kernel, as planning specialises
//! them for several kinds of device.

use naga::valid::{Capabilities, ValidationFlags, Validator};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;
use tlite_testing::Tier;
use transformer_lite::unstable::backend::device_presets::{Family, Phone};
use transformer_lite::unstable::backend::kernel::image::ImageKind;
use transformer_lite::unstable::backend::kernel::{
    Feature, FieldTy, Kernel, KernelSpec, LINEAR, Language, Role, Ty,
};
use transformer_lite::unstable::backend::{Backend, BackendKind, Caps, DeviceKind, PackedDot, TensorCores};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::executor::random;
use transformer_lite::unstable::graph::op::ALL;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::engine::{Decoder, Logits, SequenceConfig};
use transformer_lite::unstable::probe;
use transformer_lite::unstable::tensor::DType;
use transformer_lite::unstable::validate::case::{self, Scenario};
use transformer_lite_convert::decoders::{self, Form, Spec};

/// Lower tiers test one of this many. The kinds of device repeat in pairs and threes, so this has
/// no factor in common with them.
const SPARSE: usize = 5;

/// Devices that planning may tell apart.
fn kinds_of_device() -> Vec<Caps> {
    let base = tlite_testing::fake_caps();
    let languages = [Language::OpenCl, Language::Wgsl];
    let mut all = Vec::new();
    for language in languages {
        for kind in [DeviceKind::Cpu, DeviceKind::Integrated, DeviceKind::Discrete] {
            let caps = tlite_testing::fake_caps_of(language, kind);
            all.push(caps.clone());
            all.push(caps.with(|device| {
                device.subgroup = Some(32);
                device.f16_math = true;
            }));
        }
    }
    for language in languages {
        let discrete = tlite_testing::fake_caps_of(language, DeviceKind::Discrete);
        all.push(discrete.clone().with(|device| {
            device.fast_local = true;
            device.tensor_cores = Some(match language {
                Language::OpenCl => TensorCores::Ptx,
                Language::Wgsl => TensorCores::CooperativeMatrix,
            });
            device.local_bytes = 48 << 10;
            device.max_workgroup = 1024;
            device.subgroup = Some(32);
            device.f16_math = true;
        }));
        for units in case::UNITS {
            all.push(discrete.clone().with(|device| {
                device.fast_local = true;
                device.compute_units = units;
            }));
        }
    }
    // With images in buffers, through which some kernels read operands.
    let phone = Phone::find("adreno-750")
        .unwrap()
        .caps(BackendKind::OpenCl)
        .profile;
    for reads in ImageKind::ALL {
        all.push(base.clone().with(|device| {
            device.images = phone.images;
            device.images.reads = Some(reads);
            device.view_align = phone.view_align;
        }));
    }
    // CPUs that multiply bytes by vectors.
    let cpu = tlite_testing::fake_caps_of(Language::OpenCl, DeviceKind::Cpu);
    all.push(cpu.with(|device| device.packed_dot = PackedDot::X86));
    for (language, family) in languages.into_iter().zip(Family::ALL) {
        let caps = tlite_testing::fake_caps_of(language, DeviceKind::Integrated);
        all.push(caps.with(|device| {
            device.f16_math = true;
            device.set_family(Some(family));
        }));
    }
    all.push(base.clone().with(|device| {
        device.local_bytes = 1 << 14;
        device.max_workgroup = 128;
    }));
    // Small views split weights; too small ones are refused, which conformance looks at.
    all.push(base.with(|device| device.max_view_bytes = 20_000));
    all
}

/// Specialisations that the cases and a tiny model need on the kinds of device: all of them, or in
/// the quick tier those of every case on some kinds, which change from case to case.
fn specs() -> &'static [KernelSpec] {
    static ALL_SPECS: OnceLock<Vec<KernelSpec>> = OnceLock::new();
    ALL_SPECS.get_or_init(|| {
        let mut seen = BTreeMap::new();
        let kinds = kinds_of_device();
        let step = Tier::Ci.step(SPARSE);
        let mut add = |specs: Vec<KernelSpec>| {
            for s in specs {
                // The name leaves generated text out.
                seen.entry((s.to_string(), format!("{:?}", s.epilogue)))
                    .or_insert(s);
            }
        };
        let cases = ALL.iter().flat_map(|d| (d.cases)());
        for (i, case) in cases.filter(|c| c.host_only.is_none()).enumerate() {
            let scenario = Scenario::of(&case).unwrap();
            for caps in kinds.iter().skip(i % step).step_by(step) {
                match case::specs(&scenario, caps) {
                    Ok(found) => add(found),
                    Err(e)
                        if caps.profile.max_view_bytes
                            < tlite_testing::fake_caps().profile.max_view_bytes =>
                    {
                        assert_eq!(e.kind(), ErrorKind::Unsupported, "{}: {e}", case.name());
                    }
                    Err(e) => panic!("{}: {e}", case.name()),
                }
            }
        }
        for caps in &kinds {
            add(probe::specs(caps));
        }
        add(random::specs());
        let (_dir, model) = tlite_testing::tiny_model("llama", Default::default());
        // Caches that grow along axis 0, heads of whole vectors of which neighbours turn in a half.
        let glm = tempfile::tempdir().unwrap();
        let spec = Spec {
            head_dim: 64,
            ..Spec::find("chatglm2-6b").unwrap().small()
        };
        decoders::write(&spec, Form::E0m4(32), Some(1), glm.path()).unwrap();
        let generates = Target::DEVICE.with(Logits::Last);
        let eight_bits = Target {
            kv_q8: true,
            ..generates
        };
        let few_dispatches = Target {
            rotary_append: true,
            ..generates
        };
        for (folder, target) in [
            (&*model, Target::DEVICE),
            (&model, generates),
            (&model, eight_bits),
            (&model, few_dispatches),
            (glm.path(), few_dispatches),
        ] {
            let decoder = Decoder::load(&folder.join("model.onnx"), &target).unwrap();
            for caps in &kinds {
                for plan in decoder
                    .plans(
                        caps,
                        &SequenceConfig {
                            chunk: 16,
                            ..SequenceConfig::of(32)
                        },
                    )
                    .unwrap()
                {
                    add(plan.kernels);
                }
            }
        }
        seen.into_values().collect()
    })
}

fn kernels() -> BTreeMap<&'static str, &'static Kernel> {
    let operators = ALL.iter().flat_map(|d| d.kernels);
    let others = probe::KERNELS.iter().chain(random::KERNELS);
    operators.chain(others).map(|k| (k.name, *k)).collect()
}

/// The source of a kernel in a language before expansion; each has one in both.
fn source(kernel: &Kernel, language: Language) -> &'static str {
    kernel.sources.of(language).unwrap()
}

/// It measures devices, and is compiled only where it is run: some ask for what other kernels do
/// without.
fn is_probe(kernel: &Kernel) -> bool {
    probe::KERNELS.iter().any(|k| k.name == kernel.name)
}

#[test]
fn every_kernel_is_planned_and_in_place_forms_exist() {
    let planned: BTreeSet<&str> = specs().iter().map(|s| s.kernel.name).collect();
    let declared: BTreeSet<&str> = kernels().keys().copied().collect();
    assert_eq!(
        planned, declared,
        "kernels that no case plans, or that no operator declares"
    );
    for name in ["pointwise", "softmax", "norm"] {
        for dtype in [DType::F16, DType::F32] {
            let found = specs()
                .iter()
                .any(|s| s.kernel.name == name && s.in_place.is_some_and(|i| s.operands[i] == Some(dtype)));
            assert!(found, "no case plans {name} in place on {dtype}");
        }
    }
}

/// Name of a WGSL scalar.
fn scalar(module: &naga::Module, ty: naga::Handle<naga::Type>) -> String {
    match &module.types[ty].inner {
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

#[test]
fn wgsl_validates_and_its_bindings_are_the_descriptors() {
    for spec in specs() {
        let text = spec.expand(Language::Wgsl).unwrap();
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|e| panic!("{spec}: {}", e.emit_to_string(&text)));
        // `unpack2x16float` is core WGSL; naga counts it apart for the sake of old OpenGL.
        let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
        let on_units = spec.uses(Language::Wgsl, Feature::TensorCores);
        for (feature, capability) in [
            (Feature::TensorCores, Capabilities::COOPERATIVE_MATRIX),
            (Feature::Subgroups, Capabilities::SUBGROUP),
            (Feature::F16, Capabilities::SHADER_FLOAT16),
        ] {
            capabilities.set(capability, spec.uses(Language::Wgsl, feature));
        }
        Validator::new(ValidationFlags::all(), capabilities)
            .validate(&module)
            .unwrap_or_else(|e| panic!("{spec}: {}", e.emit_to_string(&text)));

        let [entry] = module.entry_points.as_slice() else {
            panic!("{spec}: one entry point expected")
        };
        assert_eq!(entry.name, spec.kernel.name);
        assert_eq!(entry.workgroup_size, [spec.workgroup, 1, 1], "{spec}");

        let mut wanted = vec![(0, "p".to_owned(), "uniform", "Params".to_owned())];
        for (i, (arg, dtype)) in (1..).zip(spec.bound()) {
            let access = if arg.role.is_weight() {
                "read"
            } else {
                "read_write"
            };
            let ty = match (arg.ty, dtype) {
                (Ty::Elem, DType::F16) if spec.is_vec4(arg) => "vec2<u32>",
                (Ty::Elem, DType::F32) if spec.is_vec4(arg) => "vec4<f32>",
                (Ty::Uint, _) | (Ty::Elem, DType::F16) => "u32",
                (Ty::Single, DType::F16) => "atomic u32",
                (Ty::Uint4, _) => "vec4<u32>",
                (Ty::Half4, _) => "vec4<f16>",
                (_, DType::F32) => "f32",
                (_, _) => "i32",
            };
            wanted.push((i, arg.name.to_owned(), access, ty.to_owned()));
        }
        let mut found = Vec::new();
        let mut local = 0;
        for (_, v) in module.global_variables.iter() {
            let inner = &module.types[v.ty].inner;
            let name = v.name.clone().unwrap_or_default();
            match (v.space, &v.binding) {
                (naga::AddressSpace::Uniform, Some(b)) => {
                    let naga::TypeInner::Struct { members, .. } = inner else {
                        panic!("{spec}: {inner:?}")
                    };
                    let fields: Vec<(String, String)> = members
                        .iter()
                        .map(|m| (m.name.clone().unwrap_or_default(), scalar(&module, m.ty)))
                        .collect();
                    let declared: Vec<(String, String)> = spec
                        .fields()
                        .map(|(n, t)| {
                            let ty = match t {
                                FieldTy::U32 => "u32",
                                FieldTy::I32 => "i32",
                                FieldTy::F32 => "f32",
                            };
                            (n.to_owned(), ty.to_owned())
                        })
                        .collect();
                    assert_eq!(fields, declared, "{spec}");
                    for (i, m) in (0u32..).zip(members) {
                        assert_eq!(m.offset, 4 * i, "{spec}: {:?}", m.name);
                    }
                    found.push((b.binding, name, "uniform", "Params".to_owned()));
                }
                (naga::AddressSpace::Storage { access }, Some(b)) => {
                    assert_eq!(b.group, 0, "{spec}");
                    let naga::TypeInner::Array {
                        base,
                        size: naga::ArraySize::Dynamic,
                        ..
                    } = inner
                    else {
                        panic!("{spec}: {name} is {inner:?}")
                    };
                    let writes = access.contains(naga::StorageAccess::STORE);
                    let access = if writes { "read_write" } else { "read" };
                    found.push((b.binding, name, access, scalar(&module, *base)));
                }
                (naga::AddressSpace::WorkGroup, None) => local += inner.size(module.to_ctx()),
                (naga::AddressSpace::Private, None) => {}
                other => panic!("{spec}: variable {name} in {other:?}"),
            }
        }
        found.sort();
        assert_eq!(found, wanted, "{spec}");
        // What every WebGPU implementation has, and what GPUs with fast work-group memory or matrix
        // units have. Query vectors of a work-item's own are for CPUs through OpenCL alone.
        let large = on_units
            || ["attention_row", "matvec_e0m_mma"].contains(&spec.kernel.name)
            || spec.defines.contains_key("ITEM");
        let most = if large { 48 << 10 } else { 16_384 };
        assert!(local <= most, "{spec} takes {local} bytes of work-group memory");
    }
}

/// A device of `kind`, or none with the reason printed; missing though required is a failure.
fn device(kind: BackendKind) -> Option<tlite_testing::Device> {
    tlite_testing::present().into_iter().find(|d| d.kind == kind)
}

/// One specialisation of [`SPARSE`], or all of them in the nightly tier.
#[test]
fn specialisations_compile_on_the_device() {
    let all = specs();
    let step = Tier::Nightly.step(SPARSE);
    std::thread::scope(|threads| {
        for kind in BackendKind::compiled() {
            let Some(device) = device(kind) else { continue };
            threads.spawn(move || {
                let mut backend = device.share();
                let start = std::time::Instant::now();
                let language = match kind {
                    BackendKind::OpenCl => Language::OpenCl,
                    BackendKind::Wgpu => Language::Wgsl,
                };
                let (units, halves) = (
                    backend.caps().profile.tensor_cores.is_some(),
                    backend.caps().profile.f16_math,
                );
                let sub_groups = units || backend.caps().profile.lane_broadcast();
                let able = |s: &&KernelSpec| {
                    !is_probe(s.kernel)
                        && (units || !s.uses(language, Feature::TensorCores))
                        && (sub_groups || !s.uses(language, Feature::Subgroups))
                        // A form of WGSL alone, whose defines the text in OpenCL C does not know.
                        && (language == Language::Wgsl || !s.defines.contains_key("BROADCAST"))
                        && (halves || !s.multiplies_halves())
                };
                for spec in all.iter().filter(able).step_by(step) {
                    let id = match backend.compile(spec) {
                        Ok(id) => id,
                        Err(e) => panic!("{e}"),
                    };
                    // One that does not compile with images is one without.
                    if language == Language::OpenCl && !spec.images.is_empty() {
                        let plain = backend.compile(&spec.without_images()).unwrap();
                        assert_ne!(id, plain, "{spec}");
                    }
                }
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("{kind}: {} kernels compiled in {seconds:.1} s", all.len() / step);
            });
        }
    });
}

#[cfg(feature = "opencl")]
#[test]
fn opencl_arguments_are_the_descriptors() {
    use opencl3::{
        context::Context, device::Device, kernel::Kernel, platform::get_platforms, program::Program,
    };
    if device(BackendKind::OpenCl).is_none() {
        return;
    }
    let platforms = get_platforms().unwrap();
    let id = platforms.iter().find_map(|p| {
        p.get_devices(opencl3::device::CL_DEVICE_TYPE_ALL)
            .ok()?
            .first()
            .copied()
    });
    let device = Device::new(id.unwrap());
    let halves = device.extensions().unwrap().contains("cl_khr_fp16");
    let context = Context::from_device(&device).unwrap();
    let mut checked = BTreeSet::new();
    for spec in specs() {
        // Names depend on the operands that are bound and on their types, not on numbers.
        let key = (
            spec.kernel.name,
            spec.operands.clone(),
            spec.in_place,
            spec.multiplies_halves(),
            spec.images.clone(),
        );
        let able = halves || !spec.multiplies_halves();
        let left_out = spec.uses(Language::OpenCl, Feature::TensorCores) || is_probe(spec.kernel);
        if left_out || !able || !checked.insert(key) {
            continue;
        }
        let text = spec.expand(Language::OpenCl).unwrap();
        let program =
            Program::create_and_build_from_source(&context, &text, "-cl-std=CL1.2 -cl-kernel-arg-info")
                .unwrap_or_else(|log| panic!("{spec}: {log}"));
        let kernel = Kernel::create(&program, spec.kernel.name).unwrap();
        let mut wanted: Vec<(String, String)> = spec
            .bound()
            .zip(spec.bound_images())
            .map(|((arg, dtype), image)| {
                let ty = match (image, arg.ty, dtype) {
                    (Some((kind, _)), _, _) => kind.name(),
                    (None, Ty::Uint, _) => "uint*",
                    (None, Ty::Uint4, _) => "uint4*",
                    (None, Ty::Half4, _) => "uint2*",
                    (None, _, DType::F16) => "half*",
                    (None, _, DType::F32) => "float*",
                    (None, _, _) => "int*",
                };
                (arg.name.to_owned(), ty.to_owned())
            })
            .collect();
        wanted.push(("p".to_owned(), "Params".to_owned()));
        let found: Vec<(String, String)> = (0..kernel.num_args().unwrap())
            .map(|i| {
                (
                    kernel.get_arg_name(i).unwrap(),
                    kernel.get_arg_type_name(i).unwrap(),
                )
            })
            .collect();
        assert_eq!(found, wanted, "{spec}");
    }
    assert!(checked.len() >= kernels().len());
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// File stems of a folder of the repository, by extension; any other file is a mistake.
fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
    let path = root().join(folder);
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(&path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert!(
                path.ends_with("common") || path.ends_with("variants"),
                "{} is not a folder of kernels",
                path.display()
            );
            continue;
        }
        assert_eq!(
            path.extension().and_then(|e| e.to_str()),
            Some(extension),
            "{}",
            path.display()
        );
        found.insert(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    found
}

#[test]
fn files_and_descriptors_pair_up() {
    for (folder, is_variant) in [("", false), ("/variants", true)] {
        let all = kernels();
        let declared = all.values().filter(|k| k.variant.is_some() == is_variant);
        let declared: BTreeSet<String> = declared.map(|k| k.name.to_owned()).collect();
        assert_eq!(stems(&format!("cl{folder}"), "cl"), declared);
        assert_eq!(stems(&format!("shaders{folder}"), "wgsl"), declared);
    }
    let (mut cl, mut wgsl) = (stems("cl/common", "cl"), stems("shaders/common", "wgsl"));
    let one = [
        ("cl", "cl", Language::OpenCl),
        ("shaders", "wgsl", Language::Wgsl),
    ];
    for ((folder, suffix, language), names) in one.into_iter().zip([OPENCL_ONLY, WGSL_ONLY]) {
        for name in names {
            let found = [cl.remove(*name), wgsl.remove(*name)];
            assert_eq!(found, [suffix == "cl", suffix == "wgsl"], "common/{name}");
            let path = root().join(format!("{folder}/common/{name}.{suffix}"));
            let text = std::fs::read_to_string(path).unwrap();
            let first = text.lines().next().unwrap();
            let gets = |s: &KernelSpec| s.expand(language).unwrap().contains(first);
            assert!(specs().iter().any(gets), "no kernel gets common/{name}");
        }
    }
    assert_eq!(cl, wgsl);
    for name in cl {
        let line = format!("#include \"common/{name}\"");
        for language in Language::ALL {
            assert!(
                kernels().values().any(|k| source(k, language).contains(&line)),
                "no kernel includes common/{name}"
            );
        }
    }
}

/// Helpers of OpenCL C alone: attention and vectors for CPUs, PTX, and what the accessors call, for
/// which WGSL has built-in functions.
const OPENCL_ONLY: &[&str] = &["attention_item", "attention_line", "half", "lanes", "mma"];

/// Helpers of WGSL alone: what OpenCL C has vectors and macros for.
const WGSL_ONLY: &[&str] = &["attention_lanes", "attention_scores", "pairs"];

/// Helpers that suit one language: CPU compilers make vectors of macros over any type, which WGSL
/// does not have; and accessors see operands in OpenCL C only within the kernel, so that a tile is
/// no function there, nor the bytes of a block.
const NOT_TWINS: &[&str] = &["bytes", "dot", "e0m", "tile"];

/// Common helpers have the same names in both languages.
#[test]
fn helpers_have_the_same_names() {
    for name in stems("cl/common", "cl")
        .iter()
        .filter(|n| !NOT_TWINS.contains(&n.as_str()) && !OPENCL_ONLY.contains(&n.as_str()))
    {
        let read = |path: String| std::fs::read_to_string(root().join(path)).unwrap();
        let cl = read(format!("cl/common/{name}.cl"));
        let wgsl = read(format!("shaders/common/{name}.wgsl"));
        let functions = |text: &str, before: &str| -> BTreeSet<String> {
            text.lines()
                .filter(|l| l.starts_with(before))
                .filter_map(|l| l.split_once('(')?.0.split_whitespace().last().map(str::to_owned))
                .collect()
        };
        let (a, b) = (functions(&cl, "inline "), functions(&wgsl, "fn "));
        assert!(
            !a.is_empty() && a == b,
            "common/{name}: {a:?} in OpenCL C, {b:?} in WGSL"
        );
    }
}

fn without_comments(text: &str) -> String {
    text.lines()
        .map(|l| l.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// What no driver has to honour, or what is an extension.
const FORBIDDEN: &[&str] = &[
    "INFINITY",
    "NAN",
    "HUGE_VAL",
    "#pragma",
    "#extension",
    "enable f16",
    "enable subgroups",
    "requires ",
    "isnan",
    "isinf",
    "fast_",
    "native_",
    "cl_khr_",
    "cl_qcom",
    "cl_arm",
    "double",
    "half2",
    "subgroup",
    "sub_group",
];

#[test]
fn kernel_texts_hold_no_forbidden_words() {
    let mut files = 0;
    for folder in ["", "/common", "/variants"]
        .map(|f| ["cl", "shaders"].map(|l| format!("{l}{f}")))
        .concat()
    {
        for entry in std::fs::read_dir(root().join(folder))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.is_file())
        {
            let text = std::fs::read_to_string(&entry).unwrap();
            let stem = entry.file_stem().and_then(|s| s.to_str());
            if kernels()
                .get(stem.unwrap_or_default())
                .is_some_and(|k| is_probe(k))
            {
                continue;
            }
            // Extensions of the language are for matrix units and for half arithmetic, which
            // devices with them alone get.
            let units = text.contains("enable wgpu_cooperative_matrix;");
            let warps = stem == Some("attention_lanes")
                || specs()
                    .iter()
                    .any(|s| Some(s.kernel.name) == stem && s.uses(Language::Wgsl, Feature::Subgroups));
            let pairs = specs()
                .iter()
                .any(|s| s.multiplies_halves() && Some(s.kernel.name) == stem);
            let of_halves = ["#pragma", "enable f16", "half2", "cl_khr_"];
            // Each form of a packed product is asked for on devices that list its extension.
            let packed = stem == Some("dot");
            let of_packed = ["#pragma", "cl_khr_", "cl_arm"];
            for (number, line) in text.lines().enumerate() {
                // Words of comments do no harm; accessors such as `vload_half2` are core.
                let code = line
                    .split("//")
                    .next()
                    .unwrap_or_default()
                    .replace("vload_half2", "")
                    .replace("vstore_half2", "")
                    .replace("vloada_half2", "")
                    .replace("vstorea_half2", "");
                for word in FORBIDDEN {
                    assert!(
                        !code.contains(word)
                            || units && *word == "enable f16"
                            || warps && *word == "subgroup"
                            || pairs && of_halves.contains(word)
                            || packed && of_packed.contains(word),
                        "{}:{}: {word}: {line}",
                        entry.display(),
                        number + 1
                    );
                }
            }
            files += 1;
        }
    }
    assert!(files > 20);
    for spec in specs().iter().filter(|s| !is_probe(s.kernel)) {
        for language in [Language::OpenCl, Language::Wgsl] {
            let text = without_comments(&spec.expand(language).unwrap());
            let units = spec.uses(language, Feature::TensorCores);
            for word in ["INFINITY", "NAN", "NaN", "inff", "#pragma", "enable "] {
                let allowed = (units || spec.multiplies_halves()) && word == "enable "
                    || spec.multiplies_halves() && word == "#pragma";
                assert!(
                    allowed || !text.contains(word),
                    "{spec}: {word} in the generated text"
                );
            }
        }
    }
}

/// What descriptors declare of their sources is what the sources hold.
#[test]
fn declarations_match_the_sources() {
    for kernel in kernels().values() {
        assert_eq!(
            kernel.is_linear,
            source(kernel, Language::Wgsl).contains(LINEAR),
            "{}",
            kernel.name
        );
    }
    for spec in specs() {
        let [cl, wgsl] = Language::ALL.map(|l| without_comments(&spec.expand(l).unwrap()));
        let includes = |language, name: &str| {
            source(spec.kernel, language).contains(&format!("#include \"common/{name}\""))
        };
        let mut found = vec![
            (
                Language::OpenCl,
                Feature::TensorCores,
                includes(Language::OpenCl, "mma"),
            ),
            (
                Language::Wgsl,
                Feature::TensorCores,
                wgsl.contains("enable wgpu_cooperative_matrix;"),
            ),
            (Language::OpenCl, Feature::Subgroups, cl.contains("sub_group_")),
            (Language::Wgsl, Feature::Subgroups, wgsl.contains("subgroup")),
        ];
        // A measurement of halves or bytes that PTX or a built-in function makes uses no other.
        if !is_probe(spec.kernel) {
            found.extend([
                (Language::OpenCl, Feature::F16, cl.contains("cl_khr_fp16")),
                (Language::Wgsl, Feature::F16, wgsl.contains("enable f16;")),
                (
                    Language::OpenCl,
                    Feature::PackedDot,
                    includes(Language::OpenCl, "dot"),
                ),
                (
                    Language::Wgsl,
                    Feature::PackedDot,
                    includes(Language::Wgsl, "dot"),
                ),
            ]);
        }
        for (language, feature, holds) in found {
            assert_eq!(
                spec.uses(language, feature),
                holds,
                "{spec}: {language:?}, {feature:?}"
            );
        }
        let axes = [0, 1, 2].map(|axis| {
            let read = cl.contains("get_global_size(") || cl.contains(&format!("get_num_groups({axis})"));
            !read
        });
        assert_eq!(spec.free_axes(), axes, "{spec}");
    }
}

/// Flags of forms for CPUs.
const CPU_FLAGS: &[&str] = &[
    "BROADCAST",
    "ITEM",
    "LINE",
    "NEAR",
    "RUNS",
    "SOFT_HALF",
    "TAIL",
    "TALL",
    "VECTORS",
    "WIDE",
    "X86_BYTES",
    "X86_HALF",
];

/// Defines that are numbers; sources also test whether they are given.
const NUMBERS: &[&str] = &[
    "BITS", "EACH", "FOLD", "HIGH", "LOW", "NORM", "RING", "RUN", "SPAN", "SPLIT", "TUPLE", "WINDOW",
];

/// The most flags of a generic kernel or helper.
const MOST_FLAGS: usize = 4;

/// Files with more flags: their number, and why they are not split.
const MANY_FLAGS: &[(&str, usize, &str)] = &[
    (
        "common/dot",
        5,
        "one product of bytes for each extension, and the order of loads",
    ),
    (
        "common/tile",
        6,
        "vector access of each operand is chosen separately",
    ),
];

/// Flags are the names that a file tests. Those of the framework (`HAS_B`, `IMAGE_X`, `IN_PLACE`,
/// and grids), of CPU forms and numbers do not count.
#[test]
fn generic_kernels_have_few_flags() {
    let mut flags: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (folder, extension) in [("cl", "cl"), ("shaders", "wgsl")] {
        for sub in ["", "common/"] {
            for stem in stems(&format!("{folder}/{sub}"), extension) {
                let path = root().join(format!("{folder}/{sub}{stem}.{extension}"));
                let text = std::fs::read_to_string(path).unwrap();
                let tests = text.lines().filter_map(|line| {
                    let (directive, name) = line.trim().split_once(' ')?;
                    ["#ifdef", "#ifndef"].contains(&directive).then(|| name.trim())
                });
                let counts = |name: &&str| {
                    !["HAS_", "IMAGE_"].iter().any(|p| name.starts_with(p))
                        && !["FOLDED", "IN_PLACE", "ROUNDS"].contains(name)
                        && !CPU_FLAGS.contains(name)
                        && !NUMBERS.contains(name)
                };
                let all = flags.entry(format!("{sub}{stem}")).or_default();
                all.extend(tests.filter(counts).map(str::to_owned));
            }
        }
    }
    let mut many = Vec::new();
    for (file, flags) in flags {
        if flags.len() > MOST_FLAGS {
            eprintln!("{file}: {flags:?}");
            many.push((file, flags.len()));
        }
    }
    let expected = MANY_FLAGS
        .iter()
        .map(|(file, flags, _)| ((*file).to_owned(), *flags));
    assert_eq!(many, expected.collect::<Vec<_>>());
}

/// Slices copy aside what a kernel reads of its results before they try a part of it: no more, and
/// no less.
#[test]
fn operands_that_are_parts_are_not_read() {
    let all = kernels();
    for kernel in all.values() {
        for part in kernel.args.iter().filter(|a| a.role == Role::PartialOut) {
            for text in Language::ALL.map(|l| source(kernel, l)) {
                let code = text
                    .lines()
                    .map(|line| line.split("//").next().unwrap_or_default());
                let code: String = code.flat_map(|line| [line, "\n"]).collect();
                for read in ["_at(", "_at2(", "_at4(", "_run("] {
                    let read = format!("{}{read}", part.name);
                    let begins = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    let found = code.match_indices(&read).any(|(at, _)| begins(at));
                    assert!(!found, "{} reads {read}", kernel.name);
                }
            }
        }
    }
    let rereads = |k: &&&Kernel| k.args.iter().any(|a| a.role.rereads());
    let names: Vec<&str> = all.values().filter(rereads).map(|k| k.name).collect();
    assert_eq!(names, ["attention_row", "gather"]);
}
