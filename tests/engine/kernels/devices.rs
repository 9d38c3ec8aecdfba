//! Kernel texts in the compilers of the devices that there are.

use super::{SPARSE, is_probe, kernels, languages, specs};
use std::collections::BTreeSet;
use tlite_testing::Tier;
use transformer_lite::unstable::backend::kernel::{Feature, KernelSpec, Language, Ty};
use transformer_lite::unstable::backend::{Backend, BackendKind};
use transformer_lite::unstable::tensor::DType;

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
                let Some(language) = backend.caps().profile.language() else {
                    return;
                };
                let (units, halves) = (
                    backend.caps().profile.tensor_cores.is_some(),
                    backend.caps().profile.f16_math,
                );
                let able = |s: &&KernelSpec| {
                    languages(s.kernel).any(|l| l == language)
                        && !is_probe(s.kernel)
                        && (units || !s.uses(language, Feature::TensorCores))
                        && (units || !s.uses(language, Feature::Subgroups))
                        && (halves || !s.multiplies_halves())
                };
                for spec in all.iter().filter(able).step_by(step) {
                    let id = match backend.compile(spec) {
                        Ok(id) => id,
                        Err(e) => panic!("{e}"),
                    };
                    // One that does not compile with images is one without.
                    if language == Language::OpenClC && !spec.images.is_empty() {
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
    let in_opencl_c = |spec: &&KernelSpec| languages(spec.kernel).any(|l| l == Language::OpenClC);
    for spec in specs().iter().filter(in_opencl_c) {
        // Names depend on the operands that are bound and on their types, not on numbers.
        let key = (
            spec.kernel.name,
            spec.operands.clone(),
            spec.in_place,
            spec.multiplies_halves(),
            spec.images.clone(),
        );
        let able = halves || !spec.multiplies_halves();
        let left_out = spec.uses(Language::OpenClC, Feature::TensorCores) || is_probe(spec.kernel);
        if left_out || !able || !checked.insert(key) {
            continue;
        }
        let text = spec.expand(Language::OpenClC).unwrap();
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
                    (None, _, DType::I64) => "long*",
                    (None, _, DType::I8) => "char*",
                    (None, _, DType::U8) => "uchar*",
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
