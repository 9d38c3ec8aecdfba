//! Dispatches as stages of persistent kernels, on devices that are CPUs.

use super::*;

/// Turns each 16 elements around by way of local memory, and adds `plus`.
static TURN: Text = Text {
    name: "turn",
    sources: ByLanguage {
        opencl_c: Some(
            "inline float with_plus(float v, float plus) { return v + plus; }
KERNEL {
  __local float held[16];
  uint first = get_group_id(0) * 16;
  for (uint i = 0; i < 16; i++) held[i] = x_at(first + i);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = 0; i < 16; i++) y_put(first + i, with_plus(held[15 - i], p.plus));
}",
        ),
        wgsl: None,
    },
    ..PLAIN
};

/// Another, with names that are those of the first.
static TIMES: Text = Text {
    name: "times",
    sources: ByLanguage {
        opencl_c: Some("inline float with_plus(float v, float plus) { return v * plus; }
KERNEL {
  for (uint i = get_global_id(0) * 8 + get_local_id(0); i < get_global_id(0) * 8 + 8; i += get_local_size(0)) y_put(i, with_plus(x_at(i), p.plus));
}"),
        wgsl: None,
    },
    ..PLAIN
};

/// Adds its number of work-groups, asked for as no text is looked through for: as a stage it is
/// another.
static COUNT: Text = Text {
    name: "count",
    sources: ByLanguage {
        opencl_c: Some("KERNEL {
  for (uint i = get_global_id(0) * 8; i < get_global_id(0) * 8 + 8; i++) y_put(i, x_at(i) + p.plus + (float)get_num_groups (0));
}"),
        wgsl: None,
    },
    ..PLAIN
};

const PLAIN: Text = kernel!("norm" { plus: F32 } [x: In, y: Out]);

const COUNTED: usize = 80;

const DISPATCHES: u32 = 48;

/// `turn` and `last`.
fn specs(last: &'static Text) -> [KernelSpec; 2] {
    [&TURN, last].map(|kernel| plain(kernel, 1, &[DType::F32; 2]))
}

/// How many launches the device means to make of them, in turn.
fn foretold(cl: &mut OpenCl, last: &'static Text) -> usize {
    let [turn, last] = specs(last);
    let all: Vec<&KernelSpec> = (0..DISPATCHES)
        .map(|i| if i % 2 == 0 { &turn } else { &last })
        .collect();
    cl.launches(&all)
}

/// What `turn` and `last` in turn, 24 times each, make of the same numbers, for each of some values
/// of `plus` and numbers of work-groups; and how many persistent kernels stand for them in the end.
fn run(cl: &mut OpenCl, last: &'static Text, launches: &[(f32, u32)]) -> (Vec<Vec<u8>>, usize) {
    let bytes = COUNTED as u64 * 4;
    let views = ["a", "b"].map(|name| buffer(cl, name, bytes));
    let kernels = specs(last).map(|spec| cl.compile(&spec).unwrap());
    let commands: Vec<Command> = (0..DISPATCHES)
        .map(|i| {
            let (this, other) = (i as usize % 2, (i as usize + 1) % 2);
            dispatch(kernels[this], &[views[this], views[other]], i % 2, 0..4)
        })
        .collect();
    let id = cl.record(&commands).unwrap();
    let results = launches.iter().map(|(plus, groups)| {
        cl.write(views[0], &to_bytes(&values(COUNTED), DType::F32))
            .unwrap();
        let launch = Launch {
            params: plus.to_le_bytes().to_vec(),
            grids: vec![[*groups, 1, 1], [2 * groups, 1, 1]],
        };
        cl.submit(id, &launch).unwrap();
        read(cl, views[0])
    });
    let results = results.collect();
    (results, cl.recordings[&id].persistent.len())
}

const LAUNCHES: [(f32, u32); 5] = [(0.5, 5), (0.5, 5), (0.25, 5), (0.25, 0), (0.5, 3)];

/// A device on which dispatches are joined; none where it is no CPU, which says so.
fn cpu() -> Option<OpenCl> {
    let options = OpenOptions {
        recording: ReplayMode::Persistent,
        ..OpenOptions::default()
    };
    match OpenCl::open(&options) {
        Ok(cl) => Some(cl),
        Err(BackendError::NotOffered {
            field: "recording",
            why,
        }) => {
            assert!(
                open().caps.kind != DeviceKind::Cpu && carries(&why, "CPU"),
                "{why}"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn stages_give_what_dispatches_give() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let Some(mut cl) = cpu() else { return };
    let mut one_by_one = opened(ReplayMode::Off, None);
    let (expected, none) = run(&mut one_by_one, &TIMES, &LAUNCHES);
    let all = u64::from(DISPATCHES) * LAUNCHES.len() as u64;
    assert_eq!((none, one_by_one.stats().launches), (0, all));
    assert_eq!(foretold(&mut one_by_one, &TIMES), DISPATCHES as usize);
    assert_eq!(foretold(&mut cl, &TIMES), 4);
    assert!(expected[0] == expected[1] && expected[0] != expected[2] && expected[0] != expected[4]);
    for units in [1, 2, 7] {
        // More than the driver has threads, of which some begin when the others have done all.
        cl.caps.profile.compute_units = units;
        let compiles = cl.stats().compiles;
        let (found, joined) = run(&mut cl, &TIMES, &LAUNCHES);
        assert!(found == expected, "{units} work-groups");
        assert_eq!(joined, 4);
        assert_eq!(cl.stats().compiles - compiles, if units == 1 { 3 } else { 0 });
    }
    let submits = 3 * LAUNCHES.len() as u64;
    assert_eq!((cl.stats().submits, cl.stats().launches), (submits, 4 * submits));
}

#[test]
fn what_differs_as_a_stage_stays_dispatches() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let Some(mut cl) = cpu() else { return };
    let (expected, _) = run(&mut opened(ReplayMode::Off, None), &COUNT, &LAUNCHES);
    let (found, joined) = run(&mut cl, &COUNT, &LAUNCHES);
    assert!(found == expected);
    assert_eq!(joined, 0);
}

#[test]
fn what_is_sliced_is_not_joined() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    if cpu().is_none() {
        return;
    }
    let (_, joined) = run(&mut opened(ReplayMode::Persistent, Some(8)), &TIMES, &LAUNCHES);
    assert_eq!(joined, 0);
}
