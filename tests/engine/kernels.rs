//! Kernel texts against their descriptors: both languages of every kernel, as planning specialises
//! them for several kinds of device.

mod devices;
mod flags;
mod texts;
mod wgsl;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::OnceLock;
use tlite_testing::Tier;
#[cfg(feature = "cpu")]
use transformer_lite::unstable::backend::device_presets::{Family, Phone};
use transformer_lite::unstable::backend::kernel::image::ImageKind;
use transformer_lite::unstable::backend::kernel::{Kernel, KernelSpec, Language};
use transformer_lite::unstable::backend::{Caps, DeviceKind, PackedDot, TensorCores, special};
use transformer_lite::unstable::error::ErrorKind;
use transformer_lite::unstable::executor::random;
use transformer_lite::unstable::graph::op::all;
use transformer_lite::unstable::graph::pass::Target;
#[cfg(feature = "cpu")]
use transformer_lite::unstable::kernels::cpu;
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
    let languages = [Language::OpenClC, Language::Wgsl];
    let mut all = Vec::new();
    for language in languages {
        for kind in [DeviceKind::Integrated, DeviceKind::Discrete] {
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
                Language::OpenClC => TensorCores::Ptx,
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
    let phone = Phone::find("adreno-750").unwrap().caps(Language::OpenClC).profile;
    for reads in ImageKind::ALL {
        all.push(base.clone().with(|device| {
            device.images = phone.images;
            device.images.reads = Some(reads);
            device.view_align = phone.view_align;
        }));
    }
    // With an instruction for dot products of bytes, which no form of a kernel is for.
    let dots = tlite_testing::fake_caps_of(Language::Wgsl, DeviceKind::Integrated);
    all.push(dots.with(|device| device.packed_dot = PackedDot::Wgsl));
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
        let cases = all().flat_map(|d| (d.cases)());
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
        add(vec![special::spec()]);
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
    let operators = all().flat_map(|d| d.kernels);
    let others = probe::KERNELS
        .iter()
        .chain(special::KERNELS)
        .chain(random::KERNELS);
    let all = operators.chain(others).map(|k| (k.name, *k));
    // Native kernels have no source.
    all.filter(|(_, k)| !k.is_native()).collect()
}

/// The native form of a descriptor is found by its arguments too.
#[cfg(feature = "cpu")]
#[test]
fn descriptors_without_sources_have_native_kernels() {
    let mut native = all().flat_map(|d| d.kernels).filter(|k| k.is_native());
    let has = |k: &&Kernel| cpu::TABLE.entries.iter().any(|e| e.is_of(k));
    assert_eq!(native.find(|k| !has(k)).map(|k| k.name), None);
}

/// The languages of a kernel's sources; variants may have only one.
fn languages(kernel: &Kernel) -> impl Iterator<Item = Language> {
    let all = Language::ALL.into_iter();
    let own: Vec<_> = all.filter(|l| kernel.sources.of(*l).is_some()).collect();
    assert!(own.len() == 2 || kernel.variant.is_some(), "{}", kernel.name);
    own.into_iter()
}

/// The source of a kernel in a language before expansion; empty if it has none.
fn source(kernel: &Kernel, language: Language) -> &'static str {
    kernel.sources.of(language).unwrap_or_default()
}

/// It measures devices, and is compiled only where it is run: some ask for what other kernels do
/// without.
fn is_probe(kernel: &Kernel) -> bool {
    let mut probes = probe::KERNELS.iter().chain(special::KERNELS);
    probes.any(|k| k.name == kernel.name)
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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a folder of the repository, as paths in it without the extension; any other file
/// is a mistake.
fn stems(folder: &str, extension: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let inner = stems(&format!("{folder}/{stem}"), extension);
            found.extend(inner.into_iter().map(|file| format!("{stem}/{file}")));
            continue;
        }
        assert_eq!(
            path.extension().and_then(|e| e.to_str()),
            Some(extension),
            "{}",
            path.display()
        );
        found.insert(stem);
    }
    found
}

/// The kernels' files in a language, without common helpers.
fn sources(language: Language) -> BTreeSet<String> {
    let mut all = match language {
        Language::OpenClC => stems("cl", "cl"),
        Language::Wgsl => stems("shaders", "wgsl"),
    };
    all.retain(|file| !file.starts_with("common/"));
    all
}
