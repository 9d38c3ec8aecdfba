//! OpenCL's own tests, on whatever driver there is; and the suite of all backends.

mod images;
mod recordings;

use super::*;
use crate::backend::kernel::{Arg, ByLanguage, FieldTy, Kernel as Text, Role, Ty};
use crate::backend::suite_tests::{
    assert_close, backend_suite, buffer, dispatch, from_bytes, plain, read, rms_norm, rms_norm_params,
    rms_norm_spec, to_bytes, values,
};
use crate::backend::{BackendKind, DeviceKind, ReplayMode};
use crate::tensor::DType;
use crate::testing::{assert_carries, has_device};
use half::f16;
use std::collections::BTreeMap;
use std::process::{Command as Process, Output};

backend_suite!(OpenCl; broken_kernels_are_named_with_log_and_place);

fn open() -> OpenCl {
    OpenCl::open(&OpenOptions::default()).unwrap()
}

fn device() -> Option<OpenCl> {
    has_device(BackendKind::OpenCl).then(open)
}

fn opened(recording: ReplayMode, slice_ms: Option<u32>) -> OpenCl {
    let options = OpenOptions {
        recording,
        slice_ms,
        ..OpenOptions::default()
    };
    OpenCl::open(&options).unwrap()
}

#[test]
fn listed_devices_have_the_limits_of_opencl() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    for caps in super::list().unwrap() {
        assert!(caps.driver.contains("OpenCL "), "{caps:?}");
        assert_eq!(caps.profile.max_view_bytes, caps.max_buffer_bytes, "{caps:?}");
        if caps.driver.contains("PoCL") {
            assert_eq!(caps.kind, DeviceKind::Cpu);
        }
    }
}

/// Runs in a process of its own, with the environment that its caller sets; prints what `list`
/// answers.
#[test]
#[ignore = "started by the tests of missing drivers"]
fn print_list() {
    match super::list() {
        Err(BackendError::NoDriver { backend, why }) => println!("NoDriver({backend}): {why}"),
        other => println!("{other:?}"),
    }
}

fn list_elsewhere(set: impl FnOnce(&mut Process)) -> String {
    let mut process = Process::new(std::env::current_exe().unwrap());
    process.args([
        "--exact",
        "internal::backend::opencl::tests::print_list",
        "--ignored",
        "--nocapture",
    ]);
    process.env_remove("OPENCL_DYLIB_PATH");
    set(&mut process);
    let Output {
        status,
        stdout,
        stderr,
    } = process.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn a_missing_library_and_a_missing_platform_are_no_driver() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("libOpenCL.so.1"), b"not a library").unwrap();
    let text = list_elsewhere(|process| {
        process.env("LD_LIBRARY_PATH", dir.path());
    });
    let install = "apt install ocl-icd-libopencl1 pocl-opencl-icd";
    assert!(
        text.contains("NoDriver(opencl): ") && text.contains(install),
        "{text}"
    );
    assert_carries(text, &["libOpenCL.so.1"]);

    let empty = tempfile::tempdir().unwrap();
    let text = list_elsewhere(|process| {
        process
            .env("OCL_ICD_VENDORS", empty.path())
            .env_remove("OCL_ICD_FILENAMES");
    });
    // Where there is no loader either, that is said.
    let code = match device::unusable("libOpenCL.so.1") {
        None => "-1001",
        Some(_) => "libOpenCL.so.1",
    };
    assert!(
        text.contains("NoDriver(opencl): ") && text.contains(code),
        "{text}"
    );
    assert!(text.contains("apt install"), "{text}");
}

#[test]
fn whole_buffers_and_transfers_take_no_sub_buffers() {
    let Some(mut cl) = device() else { return };
    let align = cl.caps().profile.view_align;
    let all = buffer(&mut cl, "data", 4 * align);
    let at = |offset| View {
        offset,
        len: align,
        ..all
    };
    cl.write(at(2 * align), &vec![7; align as usize]).unwrap();
    let commands = [
        Command::Fill {
            dst: at(align),
            byte: 1,
        },
        Command::Copy {
            src: at(align),
            dst: at(0),
        },
    ];
    cl.record(&commands).unwrap();
    read(&mut cl, all);
    let found = cl.stats();
    assert_eq!(
        found,
        Stats {
            allocations: 1,
            bytes: all.len,
            recordings: 1,
            driver_ns: found.driver_ns,
            ..Stats::default()
        }
    );
    cl.destroy_buffer(all.buffer);
    assert_eq!(cl.stats().bytes, 0);
}

#[test]
fn sub_buffers_are_created_once() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = opened(ReplayMode::Off, Some(0));
    let kernel = cl.compile(&rms_norm_spec(1, DType::F32, false)).unwrap();
    let align = cl.caps().profile.view_align;
    let arena = buffer(&mut cl, "arena", 8 * align);
    let part = |first: u64, count: u64| View {
        offset: first * align,
        len: count * align,
        ..arena
    };
    let args = [part(1, 2), part(3, 1), part(5, 2)];
    let recording = cl.record(&[dispatch(kernel, &args, 0, 0..12)]).unwrap();
    let before = cl.stats();
    assert_eq!(before.allocations, 4);
    let launch = Launch {
        params: rms_norm_params(2, align as usize / 4, 1e-5),
        grids: vec![[2, 1, 1]],
    };
    cl.submit(recording, &launch).unwrap();
    cl.wait().unwrap();
    assert!(cl.stats().driver_ns > before.driver_ns);
    // The same views are found again.
    cl.record(&[dispatch(kernel, &args, 0, 0..12)]).unwrap();
    assert_eq!(cl.stats().allocations, 4);
}

#[test]
fn fills_are_timed() {
    let Some(mut cl) = device() else { return };
    let dst = buffer(&mut cl, "x", 1 << 20);
    let recording = cl.record(&[Command::Fill { dst, byte: 1 }]).unwrap();
    let times = cl.profile(recording, &Launch::default()).unwrap();
    assert!(times.len() == 1 && times[0] > 0, "{times:?}");
}

#[test]
fn a_work_group_above_the_limit_is_unsuited() {
    let Some(mut cl) = device() else { return };
    let limit = cl.caps().profile.max_workgroup;
    let spec = KernelSpec {
        workgroup: 2 * limit,
        ..rms_norm_spec(1, DType::F32, false)
    };
    match cl.compile(&spec).unwrap_err() {
        BackendError::Unsuited { kernel, why, .. } => {
            assert_carries(kernel, &["norm"]);
            assert_carries(why, &[&(2 * limit).to_string(), &limit.to_string()]);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_refused_launch_names_the_kernel_and_the_range() {
    let Some(mut cl) = device() else { return };
    let kernel = cl.compile(&rms_norm_spec(1, DType::F32, true)).unwrap();
    let a = buffer(&mut cl, "a", 64);
    let recording = cl.record(&[dispatch(kernel, &[a, a], 3, 0..12)]).unwrap();
    let error = cl.submit(recording, &Launch::default()).unwrap_err();
    assert_carries(error, &["norm", "grid", "3"]);
    let launch = Launch {
        params: vec![0; 8],
        grids: vec![[1; 3]; 4],
    };
    assert_carries(cl.submit(recording, &launch).unwrap_err(), &["0..12"]);
}

#[test]
fn line_numbers_are_found_in_logs() {
    assert_eq!(build::error_line("<kernel>:17:5: error: x", 20), Some(17));
    assert_eq!(build::error_line("error: /tmp/a.cl:3:9: unknown", 20), Some(3));
    assert_eq!(
        build::error_line("1:4:5: warning: w\n1:7:2: error: e", 20),
        Some(7)
    );
    assert_eq!(
        build::error_line("<kernel>:99:5: error: x\n2 errors generated.", 20),
        None
    );
    assert_eq!(build::error_line("error: no place", 20), None);
}

#[test]
fn codes_become_typed_errors() {
    use driver::Code;
    use opencl3::error_codes as codes;
    let lost = |error| matches!(error, BackendError::Lost(_));
    assert!(lost(Code(-9999).at("a")));
    assert!(lost(Code(codes::CL_OUT_OF_RESOURCES).while_waiting("a")));
    assert!(!lost(Code(codes::CL_OUT_OF_RESOURCES).at("a")));
    let error = Code(codes::CL_INVALID_VALUE).at("clFlush").to_string();
    assert_eq!(error, "clFlush: CL_INVALID_VALUE (-30)");
}
