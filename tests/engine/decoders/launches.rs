//! Launches of a decoder's layer in a run of one token, on the kinds of devices that passes and
//! kernels tell apart: what a token waits for besides its bytes.

use super::*;
use transformer_lite::unstable::backend::device_presets::Phone;
use transformer_lite::unstable::backend::kernel::Language;
use transformer_lite::unstable::backend::{DeviceKind, PackedDot, TensorCores};

/// Launches of a layer behind up to 256 tokens, and behind more.
fn launches(caps: &Caps) -> [usize; 2] {
    let of = |layers: usize| {
        let spec = Spec {
            layers,
            ..Spec::find("llama2-7b").unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        decoders::write(&spec, Form::E0m4(128), None, dir.path()).unwrap();
        let target = Target::DEVICE.with(Logits::Last).on(caps);
        let decoder = DecoderBuilder::new(&target)
            .load(&model(dir.path()), ABSENT)
            .unwrap();
        let lengths = SequenceConfig::of(1024).on(caps);
        let plans = decoder.every_plan(caps, &lengths).unwrap();
        let [_, many, few, ..] = plans.as_slice() else {
            panic!("{} plans", plans.len());
        };
        [few, many].map(|plan| plan.steps.len())
    };
    let (two, three) = (of(2), of(3));
    [0, 1].map(|i| three[i] - two[i])
}

/// A GPU of NVIDIA as the drivers of both backends list it.
fn nvidia(language: Language) -> Caps {
    let opencl = language == Language::OpenClC;
    let caps = Caps {
        params_align: if opencl { 4 } else { 64 },
        max_buffer_bytes: 20 << 30,
        ..tlite_testing::fake_caps_of(language, DeviceKind::Discrete)
    };
    caps.with(|device| {
        device.view_align = if opencl { 512 } else { 32 };
        device.max_view_bytes = if opencl { 20 << 30 } else { (1 << 31) - 4 };
        device.local_bytes = 48 << 10;
        device.fast_local = true;
        device.compute_units = if opencl { 132 } else { 0 };
        device.subgroup = Some(32);
        device.f16_math = !opencl;
        (device.tensor_cores, device.packed_dot) = match language {
            Language::OpenClC => (Some(TensorCores::Ptx), PackedDot::Ptx),
            Language::Wgsl => (Some(TensorCores::CooperativeMatrix), PackedDot::Wgsl),
        };
    })
}

#[test]
fn a_layer_has_so_many_launches_for_a_token() {
    let lavapipe = Caps {
        params_align: 64,
        ..tlite_testing::fake_caps_of(Language::Wgsl, DeviceKind::Cpu)
    };
    let lavapipe = lavapipe.with(|device| {
        device.view_align = 16;
        device.subgroup = Some(8);
        device.packed_dot = PackedDot::Wgsl;
    });
    let cpu = tlite_testing::fake_caps_of(Language::OpenClC, DeviceKind::Cpu);
    let phone = |name, language| Phone::find(name).unwrap().caps(language);
    let (opencl, wgpu) = (Language::OpenClC, Language::Wgsl);
    let cases = [
        ("NVIDIA through OpenCL", nvidia(Language::OpenClC), [6, 6]),
        ("NVIDIA through wgpu", nvidia(Language::Wgsl), [6, 7]),
        ("a CPU through OpenCL", cpu, [9, 10]),
        ("lavapipe", lavapipe, [9, 10]),
        ("Adreno through OpenCL", phone("adreno-750", opencl), [9, 10]),
        ("Adreno through wgpu", phone("adreno-750", wgpu), [9, 10]),
        ("Mali through OpenCL", phone("mali-g720", opencl), [9, 10]),
        ("Mali through wgpu", phone("mali-g720", wgpu), [9, 10]),
    ];
    let found: Vec<_> = cases
        .iter()
        .map(|(name, caps, _)| (*name, launches(caps)))
        .collect();
    let wanted: Vec<_> = cases.iter().map(|(name, _, wanted)| (*name, *wanted)).collect();
    assert_eq!(found, wanted);
}
