//! Tests that every backend must pass. They use only the trait [`Backend`] and run on any device.
//!
//! Each backend's tests include the suite with one line, which may add tests that do not apply to
//! every backend: `backend_suite!(OpenCl; broken_kernels_are_named_with_log_and_place)`. The suite
//! uses two kernels: the engine's `norm` and [`SCALE`]. A backend with a new kernel language adds a
//! source in that language to [`SCALE`].

use super::kernel::{Arg, ByLanguage, FieldTy, Kernel, KernelSpec, Role, Ty};
use super::{
    Backend, BackendError, BackendKind, BufferId, Command, KernelId, Launch, OpenOptions, ReplayMode,
    SharedBackend, Stats, View,
};
use crate::kernel;
use crate::tensor::DType;
use crate::testing::{assert_carries, carries};
use half::f16;
use std::collections::BTreeMap;
use std::ops::Range;

/// Declares the tests of the suite for one [`BackendKind`].
macro_rules! backend_suite {
    ($kind:ident $(; $($more:ident),+)?) => {
        mod suite {
            $crate::backend::suite_tests::backend_suite! { @tests $kind
                devices_are_listed_with_sane_limits
                an_unknown_device_is_refused_with_the_known_ones
                bytes_come_back_from_an_aligned_offset
                rms_norm_matches_the_host_and_writes_nothing_else
                submissions_take_their_own_parameters
                commands_see_what_earlier_ones_wrote
                copies_and_fills_touch_their_range_only
                long_fills_and_copies_within_a_buffer_are_whole
                profile_times_each_command
                launches_that_do_not_fit_are_refused
                a_buffer_above_the_limit_is_out_of_memory
                kernels_compiled_ahead_are_ready
                handles_of_several_threads_do_not_mix
                $($($more)+)?
            }
        }
    };
    (@tests $kind:ident $($test:ident)+) => {
        $(
            #[test]
            fn $test() {
                let kind = $crate::backend::BackendKind::$kind;
                if $crate::testing::has_device(kind) {
                    $crate::backend::suite_tests::$test(kind);
                }
            }
        )+
    };
}
pub(super) use backend_suite;

pub(super) static RMS_NORM: Kernel =
    kernel!("norm/norm" { rows, cols: U32; epsilon: F32 } [x: In, scale: OptionalIn, y: Out]);

/// `y[i] = w[i] * factor + y[i]` for 32-bit words.
static SCALE: Kernel = Kernel {
    sources: ByLanguage {
        opencl_c: Some("KERNEL {\n  uint i = get_global_id(0);\n  y[i] = w[i] * p.factor + y[i];\n}\n"),
        wgsl: Some(
            "@compute @workgroup_size(WG)\nfn scale(@builtin(global_invocation_id) id: vec3<u32>) {\n  \
             y[id.x] = w[id.x] * p.factor + y[id.x];\n}\n",
        ),
    },
    ..Kernel::new(
        "scale",
        &[("factor", FieldTy::U32)],
        &[words("w", Role::Weight), words("y", Role::InOut)],
    )
};

/// Work-items in a work-group of [`SCALE`]; each computes one word.
const WORDS: u32 = 8;

/// An operand of 32-bit words.
pub(super) const fn words(name: &'static str, role: Role) -> Arg {
    let ty = Ty::Uint;
    Arg { name, role, ty }
}

/// A spec without defines.
pub(super) fn plain(kernel: &'static Kernel, workgroup: u32, operands: &[DType]) -> KernelSpec {
    KernelSpec {
        kernel,
        workgroup,
        defines: BTreeMap::new(),
        operands: operands.iter().copied().map(Some).collect(),
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
    }
}

/// [`RMS_NORM`] with `rows` rows per work-group.
pub(super) fn rms_norm_spec(rows: i64, dtype: DType, in_place: bool) -> KernelSpec {
    KernelSpec {
        defines: BTreeMap::from([("ROWS", rows), ("BY_COLUMN", 1)]),
        in_place: in_place.then_some(0),
        ..plain(&RMS_NORM, 64, &[dtype, DType::F32, dtype])
    }
}

fn scale_spec() -> KernelSpec {
    plain(&SCALE, WORDS, &[DType::U32, DType::U32])
}

fn open(kind: BackendKind) -> Box<dyn Backend> {
    crate::devices::open(kind, &OpenOptions::default()).unwrap()
}

/// Opens a device that executes commands one by one, without replay or time slices.
fn open_direct(kind: BackendKind) -> Box<dyn Backend> {
    let options = OpenOptions {
        recording: ReplayMode::Off,
        slice_ms: Some(0),
        ..OpenOptions::default()
    };
    crate::devices::open(kind, &options).unwrap()
}

pub(super) fn view(buffer: BufferId, offset: u64, len: u64) -> View {
    View { buffer, offset, len }
}

/// A view of a whole new buffer.
pub(super) fn buffer(b: &mut dyn Backend, label: &str, len: u64) -> View {
    view(b.create_buffer(label, len).unwrap(), 0, len)
}

pub(super) fn read(b: &mut dyn Backend, v: View) -> Vec<u8> {
    let mut out = vec![0; usize::try_from(v.len).unwrap()];
    b.read(v, &mut out).unwrap();
    out
}

fn read_words(b: &mut dyn Backend, v: View) -> Vec<u32> {
    bytemuck::pod_collect_to_vec(&read(b, v))
}

pub(super) fn dispatch(kernel: KernelId, args: &[View], step: u32, params: Range<u32>) -> Command {
    let args = args.to_vec();
    Command::Dispatch {
        kernel,
        args,
        step,
        params,
    }
}

fn fill(dst: View, byte: u8) -> Command {
    Command::Fill { dst, byte }
}

/// Values between -2 and 2, without a period that could match the row length.
pub(super) fn values(count: usize) -> Vec<f32> {
    (0u32..)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 16384.0 - 2.0)
        .take(count)
        .collect()
}

/// The bytes of `values` stored as `dtype`, padded to a multiple of 4.
pub(super) fn to_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
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

pub(super) fn from_bytes(bytes: &[u8], dtype: DType) -> Vec<f32> {
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

pub(super) fn rms_norm_params(rows: usize, cols: usize, epsilon: f32) -> Vec<u8> {
    let [rows, cols] = [rows, cols].map(|n| u32::try_from(n).unwrap().to_le_bytes());
    [rows, cols, epsilon.to_le_bytes()].concat()
}

/// Root-mean-square normalization on the host, in double precision.
pub(super) fn rms_norm(x: &[f32], scale: &[f32], cols: usize, epsilon: f64) -> Vec<f64> {
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

#[track_caller]
pub(super) fn assert_close(found: &[f32], expected: &[f64], dtype: DType) {
    assert!(found.len() >= expected.len());
    let relative = if dtype == DType::F16 { 1e-3 } else { 1e-5 };
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*f) - e).abs() <= relative * e.abs().max(0.05),
            "{dtype} element {i}: {f}, expected {e}"
        );
    }
}

pub(super) fn devices_are_listed_with_sane_limits(kind: BackendKind) {
    let all = crate::devices::list(kind).unwrap();
    assert!(!all.is_empty());
    for caps in &all {
        let device = &caps.profile;
        assert_eq!(caps.backend, kind.to_string());
        assert!(!caps.device.is_empty() && !caps.driver.is_empty(), "{caps:?}");
        assert!(
            device.view_align.is_power_of_two() && device.view_align >= 4,
            "{caps:?}"
        );
        assert!(caps.params_align.is_power_of_two(), "{caps:?}");
        assert!(
            device.max_view_bytes >= 1 << 20 && device.max_view_bytes.is_multiple_of(4),
            "{caps:?}"
        );
        assert!(caps.max_buffer_bytes >= device.max_view_bytes, "{caps:?}");
        assert!(device.max_workgroup >= 64 && device.max_grid >= 65535, "{caps:?}");
        assert!(device.local_bytes >= 1024, "{caps:?}");
    }
    let caps = open(kind).caps().clone();
    let same = all
        .iter()
        .find(|c| (&c.device, &c.driver) == (&caps.device, &caps.driver));
    assert_eq!(same.map(|c| c.kind), Some(caps.kind));
    let upper = format!("{}#1", caps.device.to_ascii_uppercase());
    assert!(crate::devices::open(kind, &OpenOptions::of(Some(&upper))).is_ok());
}

pub(super) fn an_unknown_device_is_refused_with_the_known_ones(kind: BackendKind) {
    match crate::devices::open(kind, &OpenOptions::of(Some("no such device"))).err() {
        Some(BackendError::NoDevice { asked, found }) => {
            assert_eq!(asked, "no such device");
            for caps in crate::devices::list(kind).unwrap() {
                assert!(found.contains(&caps.device), "{found}");
            }
        }
        other => panic!("{other:?}"),
    }
}

pub(super) fn bytes_come_back_from_an_aligned_offset(kind: BackendKind) {
    let mut b = open(kind);
    let align = b.caps().profile.view_align;
    let all = buffer(&mut *b, "data", 4 * align);
    b.write(all, &vec![7; 4 * align as usize]).unwrap();
    let part = view(all.buffer, 2 * align, align);
    let data: Vec<u8> = (0..align).map(|i| i as u8).collect();
    b.write(part, &data).unwrap();
    assert_eq!(read(&mut *b, part), data);
    let expected = [vec![7; 2 * align as usize], data, vec![7; align as usize]].concat();
    assert_eq!(read(&mut *b, all), expected);
    let before = b.stats();
    read(&mut *b, all);
    let after = b.stats();
    let driver_ns = after.driver_ns;
    assert_eq!(after, Stats { driver_ns, ..before }, "a second read");
    b.destroy_buffer(all.buffer);
    assert_eq!(b.stats().bytes, before.bytes - all.len);
    let freed = b.read(all, &mut [0; 4]).unwrap_err();
    assert!(matches!(freed, BackendError::Driver { .. }), "{freed}");
}

/// Rows and columns. With an odd number of columns, each work-group computes two rows.
const ROWS: [(usize, usize); 10] = [
    (1, 2),
    (3, 64),
    (5, 130),
    (1, 7),
    (2, 65),
    (5, 33),
    (4, 33),
    (4, 1),
    (5, 96),
    (3, 130),
];

pub(super) fn rms_norm_matches_the_host_and_writes_nothing_else(kind: BackendKind) {
    let mut b = open(kind);
    for dtype in [DType::F16, DType::F32] {
        for in_place in [false, true] {
            for (rows, cols) in ROWS {
                let each = if cols.is_multiple_of(2) { 1 } else { 2 };
                check_rms_norm(&mut *b, [rows, cols, each], dtype, in_place);
            }
            check_rms_norm(&mut *b, [2, 64, 2], dtype, in_place);
        }
    }
    // Two data types, in place or not, one or two rows per work-group.
    assert_eq!(b.stats().compiles, 8);
}

/// Runs the kernel on views of one buffer that is filled with a marker byte. Compares all rows with
/// the host, and checks that the bytes around the result still hold the marker.
fn check_rms_norm(b: &mut dyn Backend, [rows, cols, each]: [usize; 3], dtype: DType, in_place: bool) {
    const MARKER: u8 = 0xa5;
    let align = b.caps().profile.view_align;
    let scale = values(cols);
    let x_bytes = to_bytes(&values(rows * cols), dtype);
    // What the kernel sees: the values after rounding to the storage type.
    let x = from_bytes(&x_bytes, dtype);
    let len = x_bytes.len() as u64;
    let slot = (len + 16).next_multiple_of(align);
    let arena = buffer(
        b,
        "arena",
        align + 2 * slot + (4 * cols as u64).next_multiple_of(align),
    );
    b.write(arena, &vec![MARKER; arena.len as usize]).unwrap();
    let xv = view(arena.buffer, align, len);
    let yv = if in_place {
        xv
    } else {
        view(arena.buffer, align + slot, len)
    };
    let sv = view(arena.buffer, align + 2 * slot, 4 * cols as u64);
    b.write(xv, &x_bytes).unwrap();
    b.write(sv, &to_bytes(&scale, DType::F32)).unwrap();
    let kernel = b.compile(&rms_norm_spec(each as i64, dtype, in_place)).unwrap();
    let args = if in_place { vec![xv, sv] } else { vec![xv, sv, yv] };
    let recording = b.record(&[dispatch(kernel, &args, 0, 0..12)]).unwrap();
    let launch = Launch {
        params: rms_norm_params(rows, cols, 1e-5),
        grids: vec![[rows.div_ceil(each) as u32, 1, 1]],
    };
    b.submit(recording, &launch).unwrap();
    let out = read(b, arena);
    let (start, end) = (yv.offset as usize, (yv.offset + len) as usize);
    let expected = rms_norm(&x[..rows * cols], &scale, cols, 1e-5);
    assert_close(&from_bytes(&out[start..end], dtype), &expected, dtype);
    // Kernels store pairs of elements, including a last pair that extends past the end of the
    // tensor.
    let end = end.next_multiple_of(2 * dtype.size());
    let around = out[..align as usize].iter().chain(&out[end..end + 16]);
    assert!(
        around.copied().all(|b| b == MARKER),
        "{rows}x{cols}: bytes around changed"
    );
    b.release(recording);
    b.destroy_buffer(arena.buffer);
}

pub(super) fn submissions_take_their_own_parameters(kind: BackendKind) {
    let mut b = open_direct(kind);
    let [w, y] = ["w", "y"].map(|label| buffer(&mut *b, label, 64));
    let kernel = b.compile(&scale_spec()).unwrap();
    assert_eq!(b.compile(&scale_spec()).unwrap(), kernel);
    assert_eq!(b.stats().compiles, 1);
    b.write(w, bytemuck::cast_slice(&[1u32; 16])).unwrap();
    read(&mut *b, w);
    let unrecorded = b.stats().bytes;
    let second = b.caps().params_align as u32;
    let commands = [
        fill(y, 0),
        dispatch(kernel, &[w, y], 0, 0..4),
        dispatch(kernel, &[w, y], 1, second..second + 4),
    ];
    let recording = b.record(&commands).unwrap();
    let submit = |b: &mut dyn Backend, factors: [u32; 2], grid| {
        let mut params = vec![0; second as usize + 4];
        params[..4].copy_from_slice(&factors[0].to_le_bytes());
        params[second as usize..].copy_from_slice(&factors[1].to_le_bytes());
        let grids = vec![[2, 1, 1], grid];
        b.submit(recording, &Launch { params, grids }).unwrap();
    };
    submit(&mut *b, [3, 40], [2, 1, 1]);
    assert_eq!(
        read_words(&mut *b, y),
        [43; 16],
        "later dispatches see earlier writes"
    );
    let before = b.stats();
    submit(&mut *b, [5, 100], [1, 1, 1]);
    assert_eq!(read_words(&mut *b, y), [[105; 8], [5; 8]].concat());
    submit(&mut *b, [6, 100], [2, 0, 1]);
    assert_eq!(read_words(&mut *b, y), [6; 16], "a grid with a zero runs nothing");
    // Two submissions in flight have their own parameters.
    submit(&mut *b, [1, 0], [0, 1, 1]);
    submit(&mut *b, [2, 0], [0, 1, 1]);
    assert_eq!(read_words(&mut *b, y), [2; 16]);
    let after = b.stats();
    let expected = Stats {
        submits: before.submits + 4,
        // Every command counts, even if its grid has a zero.
        launches: before.launches + 4 * 3,
        driver_ns: after.driver_ns,
        ..before
    };
    assert_eq!(after, expected);
    b.release(recording);
    b.wait().unwrap();
    assert_eq!(
        b.stats().bytes,
        unrecorded,
        "a released recording leaves nothing behind"
    );
    for freed in [w, y] {
        b.destroy_buffer(freed.buffer);
    }
    assert_eq!(b.stats().bytes, unrecorded - 128);
    assert!(b.submit(recording, &Launch::default()).is_err());
}

pub(super) fn commands_see_what_earlier_ones_wrote(kind: BackendKind) {
    let mut b = open(kind);
    let align = b.caps().profile.view_align;
    let [a, copy] = ["a", "copy"].map(|label| buffer(&mut *b, label, 4 * align));
    let at = |offset, len| view(a.buffer, offset, len);
    let commands = [
        fill(a, 1),
        fill(at(align, align), 2),
        Command::Copy {
            src: at(0, 2 * align),
            dst: at(2 * align, 2 * align),
        },
        fill(at(0, 4), 9),
        Command::Copy { src: a, dst: copy },
    ];
    let recording = b.record(&commands).unwrap();
    b.submit(recording, &Launch::default()).unwrap();
    let n = align as usize;
    let mut expected = [vec![1; n], vec![2; n], vec![1; n], vec![2; n]].concat();
    expected[..4].fill(9);
    assert_eq!(read(&mut *b, copy), expected);
}

pub(super) fn copies_and_fills_touch_their_range_only(kind: BackendKind) {
    let mut w = open(kind);
    let [a, b] = ["a", "b"].map(|label| buffer(&mut *w, label, 64));
    let data: Vec<u32> = (0..16).collect();
    w.write(a, bytemuck::cast_slice(&data)).unwrap();
    let of = |whole: View, offset, len| view(whole.buffer, offset, len);
    let copy = |src, dst| Command::Copy { src, dst };
    let commands = [
        fill(b, 0x5a),
        fill(of(b, 8, 4), 0),
        copy(of(a, 16, 16), of(b, 32, 16)),
        copy(of(b, 32, 8), of(b, 52, 8)),
        fill(of(a, 4, 4), 0x5a),
    ];
    let recording = w.record(&commands).unwrap();
    w.submit(recording, &Launch::default()).unwrap();
    let f = 0x5a5a_5a5a;
    assert_eq!(
        read_words(&mut *w, b),
        [f, f, 0, f, f, f, f, f, 4, 5, 6, 7, f, 4, 5, f]
    );
    assert_eq!(read_words(&mut *w, of(a, 0, 16)), [0, f, 2, 3]);
}

pub(super) fn long_fills_and_copies_within_a_buffer_are_whole(kind: BackendKind) {
    let mut b = open(kind);
    let n = 9 << 20;
    let all = buffer(&mut *b, "b", 2 * n);
    let at = |offset, len| view(all.buffer, offset, len);
    let commands = [
        fill(all, 7),
        fill(at(n, n), 9),
        Command::Copy {
            src: at(n, n - 4),
            dst: at(0, n - 4),
        },
    ];
    let recording = b.record(&commands).unwrap();
    b.submit(recording, &Launch::default()).unwrap();
    let n = n as usize;
    let expected = [vec![9; n - 4], vec![7; 4], vec![9; n]].concat();
    assert!(read(&mut *b, all) == expected);
}

pub(super) fn profile_times_each_command(kind: BackendKind) {
    let mut b = open(kind);
    assert!(b.caps().profiling);
    let bytes = 1 << 20;
    let [w, y] = ["w", "y"].map(|label| buffer(&mut *b, label, bytes));
    let kernel = b.compile(&scale_spec()).unwrap();
    let commands = [
        fill(w, 1),
        fill(y, 0),
        dispatch(kernel, &[w, y], 0, 0..4),
        dispatch(kernel, &[w, y], 1, 0..4),
        Command::Copy { src: y, dst: w },
    ];
    let recording = b.record(&commands).unwrap();
    let launch = Launch {
        params: vec![2, 0, 0, 0],
        grids: vec![[bytes as u32 / (4 * WORDS), 1, 1], [0, 1, 1]],
    };
    for _ in 0..2 {
        let times = b.profile(recording, &launch).unwrap();
        assert_eq!(times.len(), 5);
        assert!(times[2] > 0 && times[2] < 1_000_000_000, "{times:?}");
        assert_eq!(times[3], 0);
        assert!(times[4] > 0, "{times:?}");
        assert!(read_words(&mut *b, w).iter().all(|v| *v == 0x0202_0202));
        // Submissions and profiles keep their order.
        b.submit(recording, &launch).unwrap();
    }
    assert!(read_words(&mut *b, w).iter().all(|v| *v == 0x0202_0202));
}

#[track_caller]
fn refused<T>(result: Result<T, BackendError>, values: &[&str]) {
    match result.map(|_| ()) {
        Err(error @ BackendError::Driver { .. }) => assert_carries(error, values),
        other => panic!("{other:?}"),
    }
}

pub(super) fn launches_that_do_not_fit_are_refused(kind: BackendKind) {
    let mut b = open(kind);
    let kernel = b.compile(&scale_spec()).unwrap();
    let [w, y] = ["w", "y"].map(|label| buffer(&mut *b, label, 32));
    let before = b.stats().bytes;
    refused(b.record(&[dispatch(kernel, &[w], 0, 0..4)]), &["2", "1"]);
    assert_eq!(
        b.stats().bytes,
        before,
        "a failed recording leaves nothing behind"
    );
    let recording = b.record(&[dispatch(kernel, &[w, y], 3, 0..4)]).unwrap();
    let launch = |bytes: usize, grids: usize| Launch {
        params: vec![0; bytes],
        grids: vec![[1; 3]; grids],
    };
    refused(b.submit(recording, &launch(0, 4)), &["4", "0"]);
    refused(b.submit(recording, &launch(4, 0)), &["grid", "3", "0"]);
    b.submit(recording, &launch(4, 4)).unwrap();
    b.wait().unwrap();
    b.release(recording);
    refused(b.submit(recording, &launch(4, 4)), &["recording"]);
}

pub(super) fn a_buffer_above_the_limit_is_out_of_memory(kind: BackendKind) {
    let mut b = open(kind);
    let limit = b.caps().max_buffer_bytes;
    match b.create_buffer("too large", limit + 4) {
        Err(BackendError::OutOfMemory { label, bytes, why }) => {
            assert_eq!((label.as_str(), bytes), ("too large", limit + 4));
            assert_carries(why, &[&limit.to_string()]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(b.stats().bytes, 0);
}

pub(super) fn kernels_compiled_ahead_are_ready(kind: BackendKind) {
    let mut b = open(kind);
    let specs = [
        scale_spec(),
        rms_norm_spec(1, DType::F32, false),
        rms_norm_spec(2, DType::F16, true),
    ];
    let first = b.compile(&specs[0]).unwrap();
    let mut ready = Vec::new();
    let all: Vec<&KernelSpec> = specs.iter().collect();
    b.compile_ahead(&all, &mut |n| ready.push(n));
    assert!(
        ready.is_sorted() && ready.iter().all(|n| *n <= specs.len()),
        "{ready:?}"
    );
    let mut ids: Vec<u32> = specs.iter().map(|spec| b.compile(spec).unwrap().0).collect();
    assert_eq!(ids[0], first.0);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), b.stats().compiles), (3, 3));
}

pub(super) fn handles_of_several_threads_do_not_mix(kind: BackendKind) {
    let shared = SharedBackend::new(open(kind));
    std::thread::scope(|threads| {
        for thread in 1..=4 {
            let mut b = shared.clone();
            threads.spawn(move || {
                let kernel = b.compile(&scale_spec()).unwrap();
                let [w, y] = ["w", "y"].map(|label| buffer(&mut b, label, 64));
                b.write(w, bytemuck::cast_slice(&[thread; 16])).unwrap();
                let commands = [fill(y, 0), dispatch(kernel, &[w, y], 0, 0..4)];
                let recording = b.record(&commands).unwrap();
                for factor in 1..=8u32 {
                    let launch = Launch {
                        params: factor.to_le_bytes().to_vec(),
                        grids: vec![[2, 1, 1]],
                    };
                    b.submit(recording, &launch).unwrap();
                    assert_eq!(read_words(&mut b, y), [thread * factor; 16]);
                }
            });
        }
    });
    assert_eq!(shared.stats().compiles, 1);
}

/// A kernel with these sources.
pub(super) const fn text(
    name: &'static str,
    opencl_c: Option<&'static str>,
    wgsl: Option<&'static str>,
) -> Kernel {
    const OPERANDS: &[Arg] = &[words("x", Role::Out)];
    Kernel {
        sources: ByLanguage { opencl_c, wgsl },
        ..Kernel::new(name, &[("n", FieldTy::U32)], OPERANDS)
    }
}

static SYNTAX: Kernel = text(
    "broken_syntax",
    Some("KERNEL {\n  x[0] = 1.0f;\n  undeclared_name = p.n;\n}\n"),
    Some("@compute @workgroup_size(WG)\nfn broken_syntax() {\n  x[0] = 1u;\n  undeclared_name = p.n;\n}\n"),
);
static INCLUDE: Kernel = text(
    "broken_include",
    Some("#include \"common/none\"\n"),
    Some("#include \"common/none\"\n"),
);
static DIRECTIVE: Kernel = text("broken_directive", Some("#ifdef A\n"), Some("#ifdef A\n"));

/// For backends that compile kernels from source text.
pub(super) fn broken_kernels_are_named_with_log_and_place(kind: BackendKind) {
    let mut b = open(kind);
    for (text, hint) in [
        (&SYNTAX, "undeclared_name"),
        (&INCLUDE, "#include"),
        (&DIRECTIVE, "#endif"),
    ] {
        match b.compile(&plain(text, 8, &[DType::U32])).unwrap_err() {
            BackendError::Build {
                kernel,
                device,
                log,
                source_excerpt,
            } => {
                assert!(kernel.starts_with(&format!("{}<WG=8", text.name)), "{kernel}");
                assert!(device.contains(&b.caps().device), "{device}");
                assert!(carries(&log, hint), "{kernel}: {log}");
                assert!(!source_excerpt.is_empty(), "{kernel}");
                let marked = source_excerpt.lines().find(|l| l.starts_with('>'));
                assert!(
                    text.name != SYNTAX.name || marked.is_some_and(|l| l.contains("undeclared_name = p.n")),
                    "{log}\n{source_excerpt}"
                );
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(b.stats().compiles, 0);
    b.wait().unwrap();
}
