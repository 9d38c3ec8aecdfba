//! The backend's own tests, on whatever adapter there is; and the suite of all backends.

use super::super::kernel::{ByLanguage, FieldTy, Kernel, Role};
use super::*;
use crate::backend::BackendKind;
use crate::backend::suite_tests::{backend_suite, buffer, dispatch, plain, read, text, words};
use crate::tensor::DType;
use crate::testing::{carries, has_device};

backend_suite!(Wgpu; broken_kernels_are_named_with_log_and_place);

fn device() -> Option<Wgpu> {
    has_device(BackendKind::Wgpu).then(|| Wgpu::open(&OpenOptions::default()).unwrap())
}

#[test]
fn adapters_are_listed_without_being_opened() {
    let Some(w) = device() else { return };
    assert!(super::list().unwrap().contains(w.caps()));
    assert!(w.caps().profile.local_bytes >= 16384);
}

#[test]
fn transfers_longer_than_a_piece_arrive_whole() {
    let Some(mut w) = device() else { return };
    let n = PIECE + 4096;
    let all = buffer(&mut w, "large", n as u64);
    let data: Vec<u8> = (0..n).map(|i| ((i * 31) >> 7) as u8).collect();
    w.write(all, &data).unwrap();
    assert!(read(&mut w, all) == data);
}

/// An operand of each kind of binding.
static NOTHING: Kernel = Kernel {
    sources: ByLanguage {
        opencl_c: None,
        wgsl: Some("@compute @workgroup_size(WG)\nfn nothing() { y[0] = w[0] + p.n; }"),
    },
    ..Kernel::new(
        "nothing",
        &[("n", FieldTy::U32)],
        &[words("w", Role::Weight), words("y", Role::InOut)],
    )
};

/// wgpu's own complaints arrive as errors of the call, and the device stays usable.
#[test]
fn a_refused_submission_is_an_error_of_the_call() {
    let Some(mut w) = device() else { return };
    let [a, b] = ["a", "b"].map(|label| buffer(&mut w, label, 32));
    let kernel = w.compile(&plain(&NOTHING, 8, &[DType::U32, DType::U32])).unwrap();
    let launch = |groups| Launch {
        params: vec![0; 4],
        grids: vec![[groups, 1, 1]],
    };
    let r = w.record(&[dispatch(kernel, &[a, b], 0, 0..4)]).unwrap();
    let huge = w.caps().profile.max_grid + 1;
    let wide = w.submit(r, &launch(huge)).unwrap_err();
    assert!(matches!(wide, BackendError::Driver { .. }), "{wide}");
    w.submit(r, &launch(1)).unwrap();
    w.wait().unwrap();
    // One buffer as weight and as output is against the contract; wgpu finds it at submission.
    let r = w.record(&[dispatch(kernel, &[a, a], 0, 0..4)]).unwrap();
    let e = w.submit(r, &launch(1)).unwrap_err();
    assert!(
        matches!(&e, BackendError::Driver { call, .. } if carries(call, "submit")),
        "{e}"
    );
}

#[test]
fn an_entry_point_of_another_name_is_a_build_error() {
    static ENTRY: Kernel = text(
        "broken_entry",
        None,
        Some("@compute @workgroup_size(WG)\nfn another_name() { x[0] = p.n; }"),
    );
    let Some(mut w) = device() else { return };
    match w.compile(&plain(&ENTRY, 8, &[DType::U32])).unwrap_err() {
        BackendError::Build { kernel, log, .. } => {
            assert!(
                kernel.contains("broken_entry") && log.contains("broken_entry"),
                "{log}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(w.stats().compiles, 0);
}

#[test]
fn a_lost_device_is_reported_by_every_later_call() {
    let Some(mut w) = device() else { return };
    let b = buffer(&mut w, "b", 64);
    w.device.destroy();
    let _ = w.wait();
    for _ in 0..2 {
        let e = w.write(b, &[0; 4]).unwrap_err();
        assert!(matches!(e, BackendError::Lost(_)), "{e}");
    }
    assert!(matches!(w.read(b, &mut [0; 4]), Err(BackendError::Lost(_))));
    assert!(matches!(w.create_buffer("c", 4), Err(BackendError::Lost(_))));
    let spec = plain(&NOTHING, 8, &[DType::U32, DType::U32]);
    assert!(matches!(w.compile(&spec), Err(BackendError::Lost(_))));
}

#[test]
fn metal_is_known_without_a_number() {
    assert_eq!(vendor(::wgpu::Backend::Metal, 0), Vendor::Apple);
    assert_eq!(vendor(::wgpu::Backend::Vulkan, 0x10de), Vendor::Pci(0x10de));
    assert_eq!(vendor(::wgpu::Backend::Dx12, 0x1002), Vendor::Pci(0x1002));
}
