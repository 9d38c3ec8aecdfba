//! Tests on whatever driver there is; a machine without one fails them.

mod images;
mod persistent;
mod recordings;

use super::*;
use crate::backend::kernel::{Arg, ByLanguage, FieldTy, Kernel as Text, Role, Ty};
use crate::backend::{BackendKind, DeviceKind, ReplayMode};
use crate::kernel;
use crate::tensor::DType;
use crate::testing::{assert_carries, carries, has_device};
use half::f16;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command as Process, Output};

static RMS_NORM: Text = kernel!("norm" { rows, cols: U32; epsilon: F32 } [x: In, scale: OptionalIn, y: Out]);

fn open() -> OpenCl {
    OpenCl::open(&OpenOptions::default()).unwrap()
}

fn opened(recording: ReplayMode, slice_ms: Option<u32>) -> OpenCl {
    let options = OpenOptions {
        recording,
        slice_ms,
        ..OpenOptions::default()
    };
    OpenCl::open(&options).unwrap()
}

fn spec(rows: i64, dtype: DType, in_place: bool) -> KernelSpec {
    KernelSpec {
        kernel: &RMS_NORM,
        workgroup: 64,
        defines: BTreeMap::from([("ROWS", rows), ("EACH", 1)]),
        operands: vec![Some(dtype), Some(DType::F32), Some(dtype)],
        in_place: in_place.then_some(0),
        epilogue: None,
        images: BTreeMap::new(),
        vec4: BTreeSet::new(),
    }
}

fn whole(buffer: BufferId, len: u64) -> View {
    View {
        buffer,
        offset: 0,
        len,
    }
}

fn round4(bytes: usize) -> u64 {
    bytes.next_multiple_of(4) as u64
}

/// Values in -2 to 2 without a pattern that the row length could hide.
fn values(count: usize) -> Vec<f32> {
    (0u32..)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 16384.0 - 2.0)
        .take(count)
        .collect()
}

fn to_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes: Vec<u8> = match dtype {
        DType::F16 => values
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn from_bytes(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F16 => bytes
            .chunks_exact(2)
            .map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect(),
    }
}

fn params(rows: u32, cols: u32, epsilon: f32) -> Vec<u8> {
    [rows.to_le_bytes(), cols.to_le_bytes(), epsilon.to_le_bytes()].concat()
}

/// The same in double precision on the host.
fn rms_norm(x: &[f32], scale: &[f32], cols: usize, epsilon: f64) -> Vec<f64> {
    x.chunks(cols)
        .flat_map(|row| {
            let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / cols as f64;
            let inverse = 1.0 / (mean + epsilon).sqrt();
            row.iter()
                .zip(scale)
                .map(move |(v, s)| f64::from(*v) * inverse * f64::from(*s))
        })
        .collect()
}

fn assert_close(found: &[f32], expected: &[f64], dtype: DType) {
    assert!(found.len() >= expected.len());
    let relative = if dtype == DType::F16 { 1e-3 } else { 1e-5 };
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*f) - e).abs() <= relative * e.abs().max(0.05),
            "element {i}: {f}, expected {e}"
        );
    }
}

/// Runs the kernel once over freshly made buffers and compares all rows.
fn check_rms_norm(cl: &mut OpenCl, rows: usize, cols: usize, dtype: DType, in_place: bool) {
    let rows_each = if cols.is_multiple_of(2) { 1 } else { 2 };
    let kernel = cl.compile(&spec(rows_each as i64, dtype, in_place)).unwrap();
    let (x, scale) = (values(rows * cols), values(cols));
    let x_bytes = to_bytes(&x, dtype);
    // What the kernel sees: the values after rounding to the storage type.
    let x = from_bytes(&x_bytes, dtype);
    let scale_bytes = to_bytes(&scale, DType::F32);
    let x_view = whole(
        cl.create_buffer("x", x_bytes.len() as u64).unwrap(),
        x_bytes.len() as u64,
    );
    let scale_view = whole(
        cl.create_buffer("scale", scale_bytes.len() as u64).unwrap(),
        round4(cols * 4),
    );
    cl.write(x_view, &x_bytes).unwrap();
    cl.write(scale_view, &scale_bytes).unwrap();
    let (args, out) = if in_place {
        (vec![x_view, scale_view], x_view)
    } else {
        let y = whole(cl.create_buffer("y", x_view.len).unwrap(), x_view.len);
        (vec![x_view, scale_view, y], y)
    };
    let recording = cl
        .record(&[Command::Dispatch {
            kernel,
            args,
            step: 0,
            params: 0..12,
        }])
        .unwrap();
    let launch = Launch {
        params: params(rows as u32, cols as u32, 1e-5),
        grids: vec![[rows.div_ceil(rows_each) as u32, 1, 1]],
    };
    cl.submit(recording, &launch).unwrap();
    let mut bytes = vec![0; x_bytes.len()];
    cl.read(out, &mut bytes).unwrap();
    assert_close(
        &from_bytes(&bytes, dtype),
        &rms_norm(&x[..rows * cols], &scale, cols, 1e-5),
        dtype,
    );
    cl.release(recording);
}

#[test]
fn devices_are_listed_with_sane_limits() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let all = (DRIVER.list)().unwrap();
    assert!(!all.is_empty());
    for caps in all {
        assert_eq!(caps.backend, "opencl");
        assert!(
            !caps.device.is_empty() && caps.driver.contains("OpenCL "),
            "{caps:?}"
        );
        assert!(
            caps.profile.view_align.is_power_of_two() && caps.profile.view_align >= 4,
            "{caps:?}"
        );
        assert!(
            caps.max_buffer_bytes >= 1 << 20 && caps.profile.max_view_bytes == caps.max_buffer_bytes,
            "{caps:?}"
        );
        assert!(
            caps.profile.max_workgroup >= 64
                && caps.profile.local_bytes >= 1024
                && caps.profile.max_grid >= 65535,
            "{caps:?}"
        );
        if caps.driver.contains("PoCL") {
            assert_eq!(caps.kind, DeviceKind::Cpu);
        }
    }
}

#[test]
fn an_unknown_device_is_refused_with_the_devices_there_are() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    match OpenCl::open(&OpenOptions::of(Some("no such device")))
        .map(|_| ())
        .unwrap_err()
    {
        BackendError::NoDevice { asked, found } => {
            assert_eq!(asked, "no such device");
            assert!(found.contains(&(DRIVER.list)().unwrap()[0].device), "{found}");
        }
        other => panic!("{other}"),
    }
}

/// Runs in a process of its own, with the environment that its caller sets; prints what `list`
/// answers.
#[test]
#[ignore = "started by the tests of missing drivers"]
fn print_list() {
    match (DRIVER.list)() {
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
fn bytes_come_back_from_an_aligned_offset() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    let align = cl.caps().profile.view_align;
    let buffer = cl.create_buffer("data", 4 * align).unwrap();
    let all = whole(buffer, 4 * align);
    cl.write(all, &vec![7; 4 * align as usize]).unwrap();
    let part = View {
        buffer,
        offset: 2 * align,
        len: align,
    };
    let data: Vec<u8> = (0..align).map(|i| i as u8).collect();
    cl.write(part, &data).unwrap();
    let mut back = vec![0; data.len()];
    cl.read(part, &mut back).unwrap();
    assert_eq!(back, data);
    let mut back = vec![0; 4 * align as usize];
    cl.read(all, &mut back).unwrap();
    let expected = [vec![7; 2 * align as usize], data, vec![7; align as usize]].concat();
    assert_eq!(back, expected);
    let found = cl.stats();
    assert_eq!(
        found,
        Stats {
            allocations: 1,
            bytes: 4 * align,
            driver_ns: found.driver_ns,
            ..Stats::default()
        }
    );
    cl.destroy_buffer(buffer);
    assert_eq!(cl.stats().bytes, 0);
    assert!(matches!(
        cl.read(all, &mut back),
        Err(BackendError::Driver { .. })
    ));
}

#[test]
fn rms_norm_matches_the_host() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    for dtype in [DType::F16, DType::F32] {
        for in_place in [false, true] {
            for (rows, cols) in [(1, 2), (3, 64), (5, 130), (1, 7), (2, 65), (5, 33), (4, 1)] {
                check_rms_norm(&mut cl, rows, cols, dtype, in_place);
            }
        }
    }
    // Two data types, in place or not, one row a group or two.
    assert_eq!(cl.stats().compiles, 8);
}

#[test]
fn a_second_submit_takes_new_params_and_allocates_nothing() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = opened(ReplayMode::Off, Some(0));
    let kernel = cl.compile(&spec(1, DType::F32, false)).unwrap();
    assert_eq!(cl.compile(&spec(1, DType::F32, false)).unwrap(), kernel);
    let align = cl.caps().profile.view_align;
    let cols = (align / 4) as usize;
    let bytes = 4 * cols as u64;
    // All operands are sub-buffers of one buffer.
    let arena = cl.create_buffer("arena", 8 * bytes).unwrap();
    let part = |first: u64, count: u64| View {
        buffer: arena,
        offset: first * bytes,
        len: count * bytes,
    };
    let (x, scale) = (values(2 * cols), values(cols));
    cl.write(part(1, 2), &to_bytes(&x, DType::F32)).unwrap();
    cl.write(part(3, 1), &to_bytes(&scale, DType::F32)).unwrap();
    let dispatch = |step, params| Command::Dispatch {
        kernel,
        args: vec![part(1, 2), part(3, 1), part(5, 2)],
        step,
        params,
    };
    let fill = Command::Fill {
        dst: part(5, 2),
        byte: 0,
    };
    let recording = cl.record(&[fill, dispatch(1, 4..16)]).unwrap();
    let before = cl.stats();
    assert_eq!(before.allocations, 4);
    let mut run = |rows: u32, epsilon: f32| {
        let launch = Launch {
            params: [vec![0; 4], params(rows, cols as u32, epsilon)].concat(),
            grids: vec![[9, 9, 9], [rows, 1, 1]],
        };
        cl.submit(recording, &launch).unwrap();
        let mut out = vec![0; 8 * cols];
        cl.read(part(5, 2), &mut out).unwrap();
        from_bytes(&out, DType::F32)
    };
    let first = run(2, 1e-5);
    assert_close(&first, &rms_norm(&x, &scale, cols, 1e-5), DType::F32);
    let second = run(2, 3.0);
    assert_close(&second, &rms_norm(&x, &scale, cols, 3.0), DType::F32);
    assert_ne!(first, second);
    let third = run(1, 1e-5);
    assert_eq!(third[..cols], first[..cols]);
    assert!(third[cols..].iter().all(|v| *v == 0.0));
    // A grid with a zero runs nothing.
    assert!(run(0, 1e-5).iter().all(|v| *v == 0.0));
    let after = cl.stats();
    assert_eq!(
        after,
        Stats {
            submits: before.submits + 4,
            // The fill and the dispatch, also where its grid has a zero.
            launches: before.launches + 4 * 2,
            driver_ns: after.driver_ns,
            ..before
        }
    );
    assert!(after.driver_ns > before.driver_ns);
    // The same views are found again.
    cl.record(&[dispatch(0, 0..12)]).unwrap();
    assert_eq!(cl.stats().allocations, 4);
}

#[test]
fn commands_see_what_earlier_ones_wrote() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    let len = 4 * cl.caps().profile.view_align;
    let a = cl.create_buffer("a", len).unwrap();
    let b = cl.create_buffer("b", len).unwrap();
    let align = cl.caps().profile.view_align;
    let at = |buffer, offset, len| View { buffer, offset, len };
    let recording = cl
        .record(&[
            Command::Fill {
                dst: whole(a, len),
                byte: 1,
            },
            Command::Fill {
                dst: at(a, align, align),
                byte: 2,
            },
            Command::Copy {
                src: at(a, 0, 2 * align),
                dst: at(a, 2 * align, 2 * align),
            },
            Command::Fill {
                dst: at(a, 0, 4),
                byte: 9,
            },
            Command::Copy {
                src: whole(a, len),
                dst: whole(b, len),
            },
        ])
        .unwrap();
    cl.submit(recording, &Launch::default()).unwrap();
    let mut out = vec![0; len as usize];
    cl.read(whole(b, len), &mut out).unwrap();
    let n = align as usize;
    let mut expected = [vec![1; n], vec![2; n], vec![1; n], vec![2; n]].concat();
    expected[..4].fill(9);
    assert_eq!(out, expected);
    assert_eq!(cl.stats().allocations, 2);
}

#[test]
fn profile_times_each_command() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    let cols = 4096u32;
    let kernel = cl.compile(&spec(1, DType::F32, true)).unwrap();
    let bytes = u64::from(cols) * 4;
    let x = whole(cl.create_buffer("x", 64 * bytes).unwrap(), 64 * bytes);
    let scale = whole(cl.create_buffer("scale", bytes).unwrap(), bytes);
    let dispatch = |step| Command::Dispatch {
        kernel,
        args: vec![x, scale],
        step,
        params: 0..12,
    };
    let recording = cl
        .record(&[
            Command::Fill { dst: x, byte: 1 },
            dispatch(0),
            dispatch(1),
            Command::Fill { dst: scale, byte: 0 },
        ])
        .unwrap();
    let launch = Launch {
        params: params(64, cols, 1e-5),
        grids: vec![[64, 1, 1], [0, 1, 1]],
    };
    let times = cl.profile(recording, &launch).unwrap();
    assert_eq!(times.len(), 4);
    assert!(times[0] > 0 && times[1] > 0 && times[3] > 0, "{times:?}");
    assert_eq!(times[2], 0);
    // Work on both queues keeps its order.
    cl.submit(recording, &launch).unwrap();
    assert_eq!(cl.profile(recording, &launch).unwrap().len(), 4);
    let mut out = vec![1; bytes as usize];
    cl.read(scale, &mut out).unwrap();
    assert!(out.iter().all(|b| *b == 0));
}

const fn text(name: &'static str, cl: &'static str) -> Text {
    const OPERANDS: &[Arg] = &[Arg {
        name: "x",
        role: Role::Out,
        ty: Ty::Uint,
    }];
    Text {
        sources: ByLanguage {
            opencl_c: Some(cl),
            wgsl: None,
        },
        ..Text::new(name, &[("n", FieldTy::U32)], OPERANDS)
    }
}

static BROKEN: Text = text(
    "broken",
    "KERNEL {\n  x[0] = 1.0f;\n  undeclared_name = p.n;\n}\n",
);
static UNKNOWN_INCLUDE: Text = text("unknown_include", "#include \"common/none\"\n");

fn broken(kernel: &'static Text, workgroup: u32) -> KernelSpec {
    KernelSpec {
        kernel,
        workgroup,
        defines: BTreeMap::new(),
        operands: vec![Some(DType::U32)],
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
        vec4: BTreeSet::new(),
    }
}

#[test]
fn a_broken_kernel_is_named_with_log_and_place() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    match cl.compile(&broken(&BROKEN, 64)).unwrap_err() {
        BackendError::Build {
            kernel,
            device,
            log,
            source_excerpt,
        } => {
            assert!(kernel.starts_with("broken<WG=64"), "{kernel}");
            assert!(device.contains(&cl.caps().device), "{device}");
            assert!(log.contains("undeclared_name"), "{log}");
            let marked = source_excerpt.lines().find(|l| l.starts_with('>'));
            assert!(
                marked.is_some_and(|l| l.contains("undeclared_name = p.n")),
                "{log}\n{source_excerpt}"
            );
        }
        other => panic!("{other}"),
    }
    match cl.compile(&broken(&UNKNOWN_INCLUDE, 64)).unwrap_err() {
        BackendError::Build { kernel, log, .. } => {
            assert!(
                kernel.starts_with("unknown_include<") && carries(&log, "#include"),
                "{kernel}: {log}"
            );
        }
        other => panic!("{other}"),
    }
    assert_eq!(cl.stats().compiles, 0);
}

#[test]
fn impossible_requests_are_errors() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = open();
    let too_wide = spec(1, DType::F32, false);
    let too_wide = KernelSpec {
        workgroup: cl.caps().profile.max_workgroup * 2,
        ..too_wide
    };
    let (asked, most) = (
        2 * cl.caps().profile.max_workgroup,
        cl.caps().profile.max_workgroup,
    );
    match cl.compile(&too_wide).unwrap_err() {
        BackendError::Unsuited { kernel, why, .. } => {
            assert_carries(kernel, &["norm"]);
            assert_carries(why, &[&asked.to_string(), &most.to_string()]);
        }
        other => panic!("{other}"),
    }

    let limit = cl.caps().max_buffer_bytes;
    match cl.create_buffer("huge", limit + 4).unwrap_err() {
        BackendError::OutOfMemory { label, bytes, why } => {
            assert_eq!((label.as_str(), bytes), ("huge", limit + 4));
            assert!(why.contains(&limit.to_string()), "{why}");
        }
        other => panic!("{other}"),
    }

    let kernel = cl.compile(&spec(1, DType::F32, true)).unwrap();
    let a = whole(cl.create_buffer("a", 64).unwrap(), 64);
    let dispatch = |args| {
        [Command::Dispatch {
            kernel,
            args,
            step: 3,
            params: 0..12,
        }]
    };
    let driver = |error: BackendError, values: &[&str]| {
        assert!(matches!(error, BackendError::Driver { .. }), "{error}");
        assert_carries(error, values);
    };
    driver(cl.record(&dispatch(vec![a])).unwrap_err(), &["2", "1"]);
    let recording = cl.record(&dispatch(vec![a, a])).unwrap();
    let error = cl.submit(recording, &Launch::default()).unwrap_err();
    driver(error, &["norm", "grid", "3"]);
    let launch = Launch {
        params: vec![0; 8],
        grids: vec![[1; 3]; 4],
    };
    driver(cl.submit(recording, &launch).unwrap_err(), &["0..12"]);
    cl.release(recording);
    driver(cl.submit(recording, &launch).unwrap_err(), &["recording"]);
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
