//! Launches of a decoder's layer in a run of one token, on the kinds of devices that passes and
//! kernels tell apart: what a token waits for besides its bytes.

use super::*;
use transformer_lite::unstable::backend::phones::Phone;
use transformer_lite::unstable::backend::{BackendKind, DeviceKind, PackedDot};

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
        let lengths = Lengths::of(1024).on(caps);
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
fn nvidia(backend: &'static str) -> Caps {
    let opencl = backend == "opencl";
    Caps {
        backend,
        kind: DeviceKind::Discrete,
        view_align: if opencl { 512 } else { 32 },
        params_align: if opencl { 4 } else { 64 },
        max_view_bytes: if opencl { 20 << 30 } else { (1 << 31) - 4 },
        max_buffer_bytes: 20 << 30,
        local_bytes: 48 << 10,
        fast_local: true,
        units: if opencl { 132 } else { 0 },
        subgroup: Some(32),
        f16_math: !opencl,
        matrix_units: true,
        packed_dot: if opencl { PackedDot::Ptx } else { PackedDot::Wgsl },
        ..tlite_testing::fake_caps()
    }
}

#[test]
fn a_layer_has_so_many_launches_for_a_token() {
    let lavapipe = Caps {
        backend: "wgpu",
        kind: DeviceKind::Cpu,
        view_align: 16,
        params_align: 64,
        subgroup: Some(8),
        packed_dot: PackedDot::Wgsl,
        ..tlite_testing::fake_caps()
    };
    let cpu = Caps {
        kind: DeviceKind::Cpu,
        ..tlite_testing::fake_caps()
    };
    let phone = |name, backend| Phone::find(name).unwrap().caps(backend);
    let (opencl, wgpu) = (BackendKind::OpenCl, BackendKind::Wgpu);
    let cases = [
        ("NVIDIA through OpenCL", nvidia("opencl"), [6, 6]),
        ("NVIDIA through wgpu", nvidia("wgpu"), [6, 7]),
        ("a CPU through OpenCL", cpu, [6, 7]),
        ("lavapipe", lavapipe, [6, 6]),
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
