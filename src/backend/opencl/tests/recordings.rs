//! Recordings of the driver, and slices: they compute what single commands do.

use super::super::replay::Queued;
use super::super::slice::{Slicer, Slices};
use super::*;

/// Ways to record that the device of these tests offers.
pub(super) fn ways() -> Vec<ReplayMode> {
    let with = |recording| OpenOptions {
        recording,
        ..OpenOptions::default()
    };
    let named = [ReplayMode::CommandBuffer, ReplayMode::Qcom];
    named
        .into_iter()
        .filter(|w| OpenCl::open(&with(*w)).is_ok())
        .collect()
}

/// Runs a chain of four normalisations, with a fill and a copy in it, once with each of `launches`:
/// rows and epsilon. Results of all runs, and how many of them came from recordings of the driver.
fn chain(cl: &mut OpenCl, rows: usize, launches: &[(u32, f32)]) -> (Vec<Vec<u8>>, u64) {
    let cols = (cl.caps().profile.view_align / 4) as usize;
    let kernel = cl.compile(&rms_norm_spec(1, DType::F32, false)).unwrap();
    let bytes = 4 * (rows * cols) as u64;
    let all = ["a", "b", "c", "d", "e"].map(|label| buffer(cl, label, bytes));
    let scale = buffer(cl, "scale", 4 * cols as u64);
    cl.write(scale, &to_bytes(&values(cols), DType::F32)).unwrap();
    let apply = |from: usize, to: usize, step: u32| {
        let params = 12 * step..12 * step + 12;
        dispatch(kernel, &[all[from], scale, all[to]], step, params)
    };
    let fill = |n: usize| Command::Fill { dst: all[n], byte: 0 };
    let commands = [
        fill(1),
        fill(2),
        fill(4),
        apply(0, 1, 0),
        apply(1, 2, 1),
        Command::Copy {
            src: all[2],
            dst: all[3],
        },
        apply(3, 4, 2),
        apply(4, 1, 3),
    ];
    let recording = cl.record(&commands).unwrap();
    let before = cl.stats().replayed_submits;
    let mut results = Vec::new();
    for (n, epsilon) in launches {
        cl.write(all[0], &to_bytes(&values(rows * cols), DType::F32))
            .unwrap();
        let launch = Launch {
            params: (0..4u8)
                .flat_map(|i| rms_norm_params(*n as usize, cols, epsilon * f32::from(i + 1)))
                .collect(),
            grids: vec![[*n, 1, 1]; 4],
        };
        cl.submit(recording, &launch).unwrap();
        results.push(read(cl, all[1]));
    }
    let replayed = cl.stats().replayed_submits - before;
    cl.release(recording);
    for view in all.into_iter().chain([scale]) {
        cl.destroy_buffer(view.buffer);
    }
    (results, replayed)
}

/// Values that stay, change, come back, and run nothing for once.
const LAUNCHES: [(u32, f32); 11] = [
    (5, 1e-5),
    (5, 1e-5),
    (5, 1e-5),
    (5, 3.0),
    (5, 3.0),
    (7, 3.0),
    (5, 1e-5),
    (5, 1e-5),
    (0, 1e-5),
    (0, 1e-5),
    (5, 1e-5),
];

#[test]
fn recordings_compute_what_single_commands_do() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let (expected, replayed) = chain(&mut opened(ReplayMode::Off, Some(0)), 7, &LAUNCHES);
    assert_eq!(replayed, 0);
    assert!(expected[0] != expected[3] && expected[0] == expected[10]);
    for way in ways() {
        let mut cl = opened(way, Some(0));
        let (found, replayed) = chain(&mut cl, 7, &LAUNCHES);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{way}, run {i}: {:?}", LAUNCHES[i]);
        }
        // Where values cannot be patched each change costs a plain run; the first is plain always.
        let patched = match &cl.recorder {
            Recorder::Qcom(_) => true,
            Recorder::CommandBuffers(api) => api.are_mutable(),
            Recorder::Off => panic!("{way} was given up"),
        };
        assert_eq!(replayed, if patched { 10 } else { 5 }, "{way}");
    }
}

#[test]
fn profiles_and_recordings_do_not_mix() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let cols = 64;
    for way in ways() {
        let mut cl = opened(way, Some(0));
        let kernel = cl.compile(&rms_norm_spec(1, DType::F32, false)).unwrap();
        let bytes = 4 * 4 * cols as u64;
        let [x, y, scale] = ["x", "y", "scale"].map(|label| buffer(&mut cl, label, bytes));
        cl.write(x, &to_bytes(&values(4 * cols), DType::F32)).unwrap();
        cl.write(scale, &to_bytes(&values(4 * cols), DType::F32)).unwrap();
        let recording = cl.record(&[dispatch(kernel, &[x, scale, y], 0, 0..12)]).unwrap();
        let launch = |epsilon| Launch {
            params: rms_norm_params(4, cols, epsilon),
            grids: vec![[4, 1, 1]],
        };
        for _ in 0..3 {
            cl.submit(recording, &launch(1e-5)).unwrap();
        }
        let expected = read(&mut cl, y);
        cl.profile(recording, &launch(3.0)).unwrap();
        assert_ne!(read(&mut cl, y), expected);
        for _ in 0..3 {
            cl.submit(recording, &launch(1e-5)).unwrap();
            assert_eq!(read(&mut cl, y), expected, "{way}");
        }
    }
}

#[test]
fn a_driver_that_refuses_to_record_is_not_asked_again() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    if !ways().contains(&ReplayMode::CommandBuffer) {
        return;
    }
    let (expected, _) = chain(&mut opened(ReplayMode::Off, Some(0)), 7, &LAUNCHES);
    for call in ["create", "finalize", "enqueue"] {
        let mut cl = opened(ReplayMode::CommandBuffer, Some(0));
        let Recorder::CommandBuffers(api) = &cl.recorder else {
            panic!("no command buffers");
        };
        cl.recorder = Recorder::CommandBuffers(api.failing(call));
        let (found, replayed) = chain(&mut cl, 7, &LAUNCHES);
        assert!(found == expected, "{call}");
        assert_eq!(replayed, 0, "{call}");
        assert!(matches!(cl.recorder, Recorder::Off), "{call}");
    }
}

#[test]
fn a_way_that_the_device_lacks_is_refused() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let there = ways();
    for way in [ReplayMode::CommandBuffer, ReplayMode::Qcom] {
        let opened = OpenCl::open(&OpenOptions {
            recording: way,
            ..OpenOptions::default()
        });
        match opened {
            Ok(_) => assert!(there.contains(&way)),
            Err(BackendError::NotOffered { field, why }) => {
                assert_eq!(field, "recording");
                assert_carries(why, &[&way.to_string()]);
            }
            Err(error) => panic!("{error}"),
        }
    }
    // A CPU gains nothing by the driver's.
    let cl = opened(ReplayMode::Auto, None);
    if cl.caps.kind == DeviceKind::Cpu {
        assert!(matches!(cl.recorder, Recorder::Off));
    }
}

#[test]
fn slices_compute_what_whole_submissions_do() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    // So many rows that one kernel is above the budget on any device that runs these tests, for
    // some milliseconds.
    let rows = 1 << 16;
    let n = rows as u32;
    let launches = [
        (n, 1e-5),
        (n, 1e-5),
        (n, 1e-5),
        (n / 3, 1e-5),
        (n, 3.0),
        (n, 3.0),
        (7, 1.0),
    ];
    let (expected, _) = chain(&mut opened(ReplayMode::Off, Some(0)), rows, &launches);
    for way in ways().into_iter().chain([ReplayMode::Off]) {
        let mut cl = opened(way, Some(1));
        let (found, _) = chain(&mut cl, rows, &launches);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{way}, run {i}");
        }
        assert!(cl.stats().longest_slice_ns > 0);
    }
}

#[test]
fn what_is_above_a_slice_runs_alone() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = opened(ReplayMode::Off, Some(1));
    let cols = 256;
    let rows = 1 << 15;
    let kernel = cl.compile(&rms_norm_spec(1, DType::F32, false)).unwrap();
    let bytes = 4 * (rows * cols) as u64;
    let [x, y, scale] = ["x", "y", "scale"].map(|label| buffer(&mut cl, label, bytes));
    let small = buffer(&mut cl, "small", 64);
    let input = values(rows * cols);
    cl.write(scale, &to_bytes(&values(cols), DType::F32)).unwrap();
    cl.write(x, &to_bytes(&input, DType::F32)).unwrap();
    let fill = || Command::Fill { dst: small, byte: 0 };
    let commands = [fill(), fill(), dispatch(kernel, &[x, scale, y], 0, 0..12), fill()];
    let recording = cl.record(&commands).unwrap();
    let launch = Launch {
        params: rms_norm_params(rows, cols, 1e-5),
        grids: vec![[rows as u32, 1, 1]],
    };
    let expected = rms_norm(&input, &values(cols), cols, 1e-5);
    for is_first in [true, false, false] {
        cl.write(y, &vec![0; bytes as usize]).unwrap();
        cl.submit(recording, &launch).unwrap();
        let out = read(&mut cl, y);
        assert_close(&from_bytes(&out, DType::F32), &expected, DType::F32);
        // At first each command runs alone; 64 MiB always take more than a millisecond.
        let cut = &cl.recordings[&recording].cut;
        assert!(cut.all.iter().any(|slice| slice.steps == (2..3)), "{cut:?}");
        assert!(!is_first || cut.all.len() == 4, "{cut:?}");
    }
    assert!(cl.stats().longest_slice_ns > 1_000_000);
}

#[test]
fn a_slice_without_an_event_is_waited_for() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let mut cl = opened(ReplayMode::Off, Some(1));
    let bytes = 1 << 28;
    let much = buffer(&mut cl, "much", bytes);
    let recording = cl.record(&[Command::Fill { dst: much, byte: 1 }]).unwrap();
    let (block, _) = cl.place(much).unwrap();
    let fill = || {
        cl.queue
            .fill(&block.mem, 0, bytes as usize, 1, true)
            .unwrap()
            .unwrap()
    };
    let mut slicer = Slicer::new(1);
    let mut cut = Slices::whole(1);
    let steps = &cl.recordings[&recording].steps;
    assert!(cut.follow(recording, &mut slicer, steps, &Launch::default()));
    let last = [fill(), fill(), fill()].into_iter().next_back().unwrap();
    slicer.push(recording, &cut, 0, Queued::default());
    slicer.drain(0, &cl.queue).unwrap();
    // Times are told of what is done alone.
    assert!(last.end().is_ok(), "drained while it runs");
    assert!(slicer.longest > 0, "measured by the host");
    cl.destroy_buffer(much.buffer);
}
