//! Runs on whatever adapter there is; a machine without one fails, with the remedy in the message.

use super::super::kernel::{Arg, ByLanguage, FieldTy, Kernel, Role, Ty};
use super::*;
use crate::backend::BackendKind;
use crate::kernel;
use crate::tensor::DType;
use crate::testing::{assert_carries, carries, has_device};
use half::f16;
use std::collections::{BTreeMap, BTreeSet};

static RMS_NORM: Kernel =
    kernel!("norm" { rows, cols: U32; epsilon: F32 } [x: In, scale: OptionalIn, y: Out]);

/// `y[i] = x[i] * factor + y[i]` over words, one group of 8 work-items for 8 words.
static SCALE: Kernel = Kernel {
    sources: ByLanguage {
        opencl_c: None,
        wgsl: Some(
            "@compute @workgroup_size(WG)\n\
           fn scale(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = w[id.x] * p.factor + y[id.x]; }",
        ),
    },
    ..Kernel::new(
        "scale",
        &[("factor", FieldTy::U32)],
        &[
            Arg {
                name: "w",
                role: Role::Weight,
                ty: Ty::Uint,
            },
            Arg {
                name: "y",
                role: Role::InOut,
                ty: Ty::Uint,
            },
        ],
    )
};

fn spec(kernel: &'static Kernel, workgroup: u32, operands: &[DType], rows: i64) -> KernelSpec {
    KernelSpec {
        kernel,
        workgroup,
        defines: BTreeMap::from([("ROWS", rows), ("EACH", 1)]),
        operands: operands.iter().map(|d| Some(*d)).collect(),
        in_place: None,
        epilogue: None,
        images: BTreeMap::new(),
        vec4: BTreeSet::new(),
    }
}

fn scale_spec() -> KernelSpec {
    spec(&SCALE, 8, &[DType::U32, DType::U32], 1)
}

fn open() -> Wgpu {
    Wgpu::open(&OpenOptions::default()).unwrap()
}

fn view(buffer: BufferId, offset: u64, len: usize) -> View {
    View {
        buffer,
        offset,
        len: len as u64,
    }
}

fn words_of(w: &mut Wgpu, v: View) -> Vec<u32> {
    let mut out = vec![0u32; v.len as usize / 4];
    w.read(v, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

/// Bytes of halves, padded to a multiple of 4.
fn halves(values: &[f32]) -> Vec<u8> {
    let mut bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| f16::from_f32(*v).to_le_bytes())
        .collect();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed;
    let mut next = || {
        s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (s >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| f16::from_f32(next()).to_f32()).collect()
}

fn rms_norm_host(x: &[f32], scale: &[f32], cols: usize, epsilon: f32) -> Vec<f32> {
    x.chunks(cols)
        .flat_map(|row| {
            let mean = row.iter().map(|v| v * v).sum::<f32>() / cols as f32;
            let inverse = 1.0 / (mean + epsilon).sqrt();
            row.iter().zip(scale).map(move |(v, s)| v * inverse * s)
        })
        .collect()
}

fn rms_norm_params(rows: usize, cols: usize, epsilon: f32) -> Vec<u8> {
    [
        (rows as u32).to_le_bytes(),
        (cols as u32).to_le_bytes(),
        epsilon.to_le_bytes(),
    ]
    .concat()
}

/// Runs `rms_norm` at non-zero offsets of one arena full of a marker, and compares with the host;
/// checks that nothing around the output changed.
fn rms_norm_case(x_type: DType, rows: usize, cols: usize, per_group: i64, in_place: bool) {
    let mut w = open();
    let align = w.caps().profile.view_align;
    let x = numbers(rows * cols, 7);
    let scale = numbers(cols, 11);
    let bytes_of = |v: &[f32]| {
        if x_type == DType::F16 {
            halves(v)
        } else {
            bytemuck::cast_slice(v).to_vec()
        }
    };
    let x_bytes = bytes_of(&x);
    let slot = (x_bytes.len() as u64 + 16).next_multiple_of(align);
    let total = align + 2 * slot + cols as u64 * 4;
    let arena = w.create_buffer("arena", total.next_multiple_of(align)).unwrap();
    w.write(view(arena, 0, total as usize), &vec![0xa5; total as usize])
        .unwrap();
    let xv = view(arena, align, x_bytes.len());
    let yv = if in_place {
        xv
    } else {
        view(arena, align + slot, x_bytes.len())
    };
    let sv = view(arena, align + 2 * slot, cols * 4);
    w.write(xv, &x_bytes).unwrap();
    w.write(sv, bytemuck::cast_slice(&scale)).unwrap();

    let mut s = spec(&RMS_NORM, 64, &[x_type, DType::F32, x_type], per_group);
    s.in_place = in_place.then_some(0);
    let kernel = w.compile(&s).unwrap();
    let args = if in_place { vec![xv, sv] } else { vec![xv, sv, yv] };
    let r = w
        .record(&[Command::Dispatch {
            kernel,
            args,
            step: 0,
            params: 0..12,
        }])
        .unwrap();
    let groups = rows.div_ceil(per_group as usize) as u32;
    w.submit(
        r,
        &Launch {
            params: rms_norm_params(rows, cols, 1e-5),
            grids: vec![[groups, 1, 1]],
        },
    )
    .unwrap();

    let mut out = vec![0u8; total as usize];
    w.read(view(arena, 0, total as usize), &mut out).unwrap();
    let at = yv.offset as usize;
    let y = &out[at..at + x_bytes.len()];
    let size = x_type.size();
    let got: Vec<f32> = y
        .chunks_exact(size)
        .take(rows * cols)
        .map(|b| {
            if size == 2 {
                f16::from_le_bytes([b[0], b[1]]).to_f32()
            } else {
                f32::from_le_bytes(b.try_into().unwrap())
            }
        })
        .collect();
    for (i, (g, e)) in got.iter().zip(rms_norm_host(&x, &scale, cols, 1e-5)).enumerate() {
        assert!(
            (g - e).abs() <= 2e-3 * e.abs().max(0.5),
            "{x_type} {rows}x{cols} element {i}: {g}, expected {e}"
        );
    }
    assert_eq!(got.len(), rows * cols);
    let after = at + x_bytes.len();
    assert!(
        out[..align as usize].iter().all(|b| *b == 0xa5),
        "bytes before the operands changed"
    );
    assert!(
        out[after..after + 16].iter().all(|b| *b == 0xa5),
        "bytes after the output changed"
    );
}

#[test]
fn adapters_are_listed_without_being_opened() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let all = (DRIVER.list)().unwrap();
    let w = open();
    assert!(all.contains(w.caps()));
    let caps = w.caps();
    assert!(caps.profile.view_align.is_power_of_two() && caps.params_align.is_power_of_two());
    assert!(caps.profile.max_view_bytes >= 1 << 20 && caps.profile.max_view_bytes.is_multiple_of(4));
    assert!(
        caps.profile.max_workgroup >= 64
            && caps.profile.max_grid >= 1024
            && caps.profile.local_bytes >= 16384
    );
    assert!(Wgpu::open(&OpenOptions::of(Some(&caps.device.to_ascii_uppercase()))).is_ok());
}

#[test]
fn unknown_device_lists_the_known_ones() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let name = open().caps().device.clone();
    match Wgpu::open(&OpenOptions::of(Some("no such device"))).err() {
        Some(BackendError::NoDevice { asked, found }) => {
            assert_eq!(asked, "no such device");
            assert!(found.contains(&name));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_come_back_from_an_offset() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let align = w.caps().profile.view_align;
    let b = w.create_buffer("b", 4 * align).unwrap();
    let whole = view(b, 0, 4 * align as usize);
    w.write(whole, &vec![1; whole.len as usize]).unwrap();
    let data: Vec<u8> = (0..align as u8).collect();
    let v = view(b, 2 * align, data.len());
    w.write(v, &data).unwrap();
    let mut out = vec![0; data.len()];
    w.read(v, &mut out).unwrap();
    assert_eq!(out, data);
    let before = w.stats();
    w.read(v, &mut out).unwrap();
    assert_eq!(w.stats(), before, "a second read allocates nothing");
    let mut all = vec![0; whole.len as usize];
    w.read(whole, &mut all).unwrap();
    assert!(
        all.iter()
            .take(2 * align as usize)
            .chain(all.iter().skip(3 * align as usize))
            .all(|b| *b == 1)
    );
}

#[test]
fn transfers_longer_than_a_piece_arrive_whole() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let n = PIECE + 4096;
    let b = w.create_buffer("large", n as u64).unwrap();
    let data: Vec<u8> = (0..n).map(|i| ((i * 31) >> 7) as u8).collect();
    w.write(view(b, 0, n), &data).unwrap();
    let mut out = vec![0; n];
    w.read(view(b, 0, n), &mut out).unwrap();
    assert!(out == data);
}

#[test]
fn rms_norm_matches_the_host() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    rms_norm_case(DType::F16, 5, 96, 1, false);
    rms_norm_case(DType::F32, 3, 130, 1, false);
    rms_norm_case(DType::F16, 2, 64, 2, false);
}

#[test]
fn rms_norm_of_odd_rows_takes_them_in_pairs() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    rms_norm_case(DType::F16, 4, 33, 2, false);
    rms_norm_case(DType::F16, 5, 33, 2, false);
    rms_norm_case(DType::F32, 4, 33, 2, false);
}

#[test]
fn rms_norm_works_in_place() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    rms_norm_case(DType::F16, 3, 96, 1, true);
    rms_norm_case(DType::F16, 3, 33, 2, true);
}

#[test]
fn a_second_submission_takes_other_values_and_allocates_nothing() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let (a, b) = (
        w.create_buffer("w", 64).unwrap(),
        w.create_buffer("y", 64).unwrap(),
    );
    let kernel = w.compile(&scale_spec()).unwrap();
    assert_eq!(w.compile(&scale_spec()).unwrap(), kernel);
    assert_eq!(w.stats().compiles, 1);
    w.write(view(a, 0, 64), bytemuck::cast_slice(&[1u32; 16]))
        .unwrap();
    let align = w.caps().params_align as u32;
    let dispatch = |step, at: u32| Command::Dispatch {
        kernel,
        args: vec![view(a, 0, 64), view(b, 0, 64)],
        step,
        params: at..at + 4,
    };
    let clear = Command::Fill {
        dst: view(b, 0, 64),
        byte: 0,
    };
    let r = w.record(&[clear, dispatch(0, 0), dispatch(1, align)]).unwrap();
    let launch = |first: u32, second: u32, grid| {
        let mut params = vec![0; align as usize + 4];
        params[..4].copy_from_slice(&first.to_le_bytes());
        params[align as usize..].copy_from_slice(&second.to_le_bytes());
        Launch {
            params,
            grids: vec![[2, 1, 1], grid],
        }
    };
    let out = view(b, 0, 64);
    w.submit(r, &launch(3, 40, [2, 1, 1])).unwrap();
    assert_eq!(
        words_of(&mut w, out),
        [43; 16],
        "later dispatches see earlier writes"
    );
    let before = w.stats();
    w.submit(r, &launch(5, 100, [1, 1, 1])).unwrap();
    assert_eq!(words_of(&mut w, out), [[105; 8], [5; 8]].concat());
    w.submit(r, &launch(6, 100, [2, 0, 1])).unwrap();
    assert_eq!(words_of(&mut w, out), [6; 16], "a grid with a zero runs nothing");
    let after = w.stats();
    assert_eq!(
        (after.allocations, after.bytes),
        (before.allocations, before.bytes)
    );
    assert_eq!(after.submits, 3);

    // Two submissions in flight have their own parameters.
    w.submit(r, &launch(1, 0, [0, 1, 1])).unwrap();
    w.submit(r, &launch(2, 0, [0, 1, 1])).unwrap();
    assert_eq!(words_of(&mut w, out), [2; 16]);

    let bytes = w.stats().bytes;
    w.release(r);
    w.destroy_buffer(a);
    w.destroy_buffer(b);
    w.wait().unwrap();
    assert_eq!(w.stats().bytes, bytes - 128 - u64::from(align) - 16);
    assert!(w.submit(r, &Launch::default()).is_err());
}

#[test]
fn a_launch_that_does_not_fit_is_refused() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let (a, b) = (
        w.create_buffer("w", 32).unwrap(),
        w.create_buffer("y", 32).unwrap(),
    );
    let kernel = w.compile(&scale_spec()).unwrap();
    let args = vec![view(a, 0, 32), view(b, 0, 32)];
    let r = w
        .record(&[Command::Dispatch {
            kernel,
            args,
            step: 0,
            params: 0..4,
        }])
        .unwrap();
    let short = w
        .submit(
            r,
            &Launch {
                params: vec![],
                grids: vec![[1, 1, 1]],
            },
        )
        .unwrap_err();
    assert!(matches!(short, BackendError::Driver { .. }), "{short}");
    assert_carries(short, &["4", "0"]);
    let none = w
        .submit(
            r,
            &Launch {
                params: vec![0; 4],
                grids: vec![],
            },
        )
        .unwrap_err();
    assert!(matches!(none, BackendError::Driver { .. }), "{none}");
    assert_carries(none, &["grid", "0"]);
    // wgpu's own complaint arrives as an error of the call, and the device stays usable.
    let huge = w.caps().profile.max_grid + 1;
    let wide = w
        .submit(
            r,
            &Launch {
                params: vec![0; 4],
                grids: vec![[huge, 1, 1]],
            },
        )
        .unwrap_err();
    assert!(matches!(wide, BackendError::Driver { .. }), "{wide}");
    w.submit(
        r,
        &Launch {
            params: vec![0; 4],
            grids: vec![[1, 1, 1]],
        },
    )
    .unwrap();
    w.wait().unwrap();
    let overlap = vec![view(a, 0, 32), view(a, 0, 32)];
    let bytes = w.stats().bytes;
    let r = w.record(&[Command::Dispatch {
        kernel,
        args: vec![view(a, 0, 32)],
        step: 0,
        params: 0..4,
    }]);
    assert_carries(r.unwrap_err(), &["2", "1"]);
    assert_eq!(w.stats().bytes, bytes, "a failed recording leaves nothing behind");
    // One buffer as weight and as output is against the contract; wgpu finds it at submission.
    let r = w
        .record(&[Command::Dispatch {
            kernel,
            args: overlap,
            step: 0,
            params: 0..4,
        }])
        .unwrap();
    let e = w
        .submit(
            r,
            &Launch {
                params: vec![0; 4],
                grids: vec![[1, 1, 1]],
            },
        )
        .unwrap_err();
    assert!(
        matches!(&e, BackendError::Driver { call, .. } if carries(call, "submit")),
        "{e}"
    );
}

#[test]
fn a_broken_kernel_names_itself_and_the_line() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    const fn broken(name: &'static str, wgsl: &'static str) -> Kernel {
        const OPERANDS: &[Arg] = &[Arg {
            name: "y",
            role: Role::Out,
            ty: Ty::Uint,
        }];
        Kernel {
            sources: ByLanguage {
                opencl_c: None,
                wgsl: Some(wgsl),
            },
            ..Kernel::new(name, &[("n", FieldTy::U32)], OPERANDS)
        }
    }
    static SYNTAX: Kernel = broken(
        "broken_syntax",
        "@compute @workgroup_size(WG)\nfn broken_syntax() {\n  y[0] = nonsense;\n}",
    );
    static TYPES: Kernel = broken(
        "broken_entry",
        "@compute @workgroup_size(WG)\nfn another_name() { y[0] = p.n; }",
    );
    static DIRECTIVE: Kernel = broken("broken_directive", "#ifdef A\n");
    let mut w = open();
    for (kernel, hint) in [(&SYNTAX, "nonsense"), (&TYPES, "broken_entry"), (&DIRECTIVE, "")] {
        match w.compile(&spec(kernel, 8, &[DType::U32], 1)).unwrap_err() {
            BackendError::Build {
                kernel: name,
                device,
                log,
                source_excerpt,
            } => {
                assert!(name.contains(kernel.name) && device.contains(&w.caps().device));
                assert!(log.contains(hint) && !log.is_empty(), "{log}");
                assert!(!source_excerpt.is_empty());
                if kernel.name == "broken_syntax" {
                    let marked = source_excerpt.lines().find(|l| l.starts_with('>')).unwrap();
                    assert!(marked.contains("nonsense"), "{source_excerpt}");
                }
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(w.stats().compiles, 0);
    w.wait().unwrap();
}

#[test]
fn copies_and_fills_touch_their_range_only() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let (a, b) = (
        w.create_buffer("a", 64).unwrap(),
        w.create_buffer("b", 64).unwrap(),
    );
    let data: Vec<u32> = (0..16).collect();
    w.write(view(a, 0, 64), bytemuck::cast_slice(&data)).unwrap();
    let r = w
        .record(&[
            Command::Fill {
                dst: view(b, 0, 64),
                byte: 0x5a,
            },
            Command::Fill {
                dst: view(b, 8, 4),
                byte: 0,
            },
            Command::Copy {
                src: view(a, 16, 16),
                dst: view(b, 32, 16),
            },
            Command::Copy {
                src: view(b, 32, 8),
                dst: view(b, 52, 8),
            },
            Command::Fill {
                dst: view(a, 4, 4),
                byte: 0x5a,
            },
        ])
        .unwrap();
    w.submit(r, &Launch::default()).unwrap();
    let f = 0x5a5a_5a5a;
    assert_eq!(
        words_of(&mut w, view(b, 0, 64)),
        [f, f, 0, f, f, f, f, f, 4, 5, 6, 7, f, 4, 5, f]
    );
    assert_eq!(words_of(&mut w, view(a, 0, 16)), [0, f, 2, 3]);
}

#[test]
fn long_fills_and_copies_within_a_buffer_go_in_parts() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let n = 9 << 20;
    let b = w.create_buffer("b", 2 * n).unwrap();
    let r = w
        .record(&[
            Command::Fill {
                dst: view(b, 0, 2 * n as usize),
                byte: 7,
            },
            Command::Fill {
                dst: view(b, n, n as usize),
                byte: 9,
            },
            Command::Copy {
                src: view(b, n, n as usize - 4),
                dst: view(b, 0, n as usize - 4),
            },
        ])
        .unwrap();
    w.submit(r, &Launch::default()).unwrap();
    let mut out = vec![0u8; 2 * n as usize];
    w.read(view(b, 0, out.len()), &mut out).unwrap();
    let seven = n as usize - 4..n as usize;
    assert!(
        out.iter()
            .enumerate()
            .all(|(i, v)| *v == if seven.contains(&i) { 7 } else { 9 })
    );
}

#[test]
fn profile_times_what_ran() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    assert!(w.caps().profiling, "the adapter has timestamp queries");
    let n = 1 << 20;
    let (a, b) = (w.create_buffer("w", n).unwrap(), w.create_buffer("y", n).unwrap());
    let (av, bv) = (view(a, 0, n as usize), view(b, 0, n as usize));
    let kernel = w.compile(&scale_spec()).unwrap();
    let dispatch = |step| Command::Dispatch {
        kernel,
        args: vec![av, bv],
        step,
        params: 0..4,
    };
    let r = w
        .record(&[
            Command::Fill { dst: av, byte: 1 },
            Command::Fill { dst: bv, byte: 0 },
            dispatch(0),
            dispatch(1),
            Command::Copy { src: bv, dst: av },
        ])
        .unwrap();
    let launch = Launch {
        params: vec![2, 0, 0, 0],
        grids: vec![[(n / 32) as u32, 1, 1], [0, 1, 1]],
    };
    for _ in 0..2 {
        let times = w.profile(r, &launch).unwrap();
        assert_eq!(times.len(), 5);
        assert!(times[2] > 0 && times[2] < 1_000_000_000, "{times:?}");
        assert_eq!(times[3], 0);
        assert!(times[4] > 0, "{times:?}");
    }
    assert!(words_of(&mut w, av).iter().all(|v| *v == 0x0202_0202));
}

#[test]
fn a_buffer_above_the_limit_is_out_of_memory() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let bytes = w.caps().max_buffer_bytes + 4;
    match w.create_buffer("too large", bytes) {
        Err(BackendError::OutOfMemory {
            label, bytes: asked, ..
        }) => {
            assert_eq!((label.as_str(), asked), ("too large", bytes));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_device_is_reported_by_every_later_call() {
    if !has_device(BackendKind::Wgpu) {
        return;
    }
    let mut w = open();
    let b = w.create_buffer("b", 64).unwrap();
    w.device.destroy();
    let _ = w.wait();
    for _ in 0..2 {
        let e = w.write(view(b, 0, 4), &[0; 4]).unwrap_err();
        assert!(matches!(e, BackendError::Lost(_)), "{e}");
    }
    assert!(matches!(
        w.read(view(b, 0, 4), &mut [0; 4]),
        Err(BackendError::Lost(_))
    ));
    assert!(matches!(w.create_buffer("c", 4), Err(BackendError::Lost(_))));
    assert!(matches!(w.compile(&scale_spec()), Err(BackendError::Lost(_))));
}

#[test]
fn metal_is_known_without_a_number() {
    assert_eq!(maker(::wgpu::Backend::Metal, 0), Maker::ApplesDriver);
    assert_eq!(maker(::wgpu::Backend::Vulkan, 0x10de), Maker::Pci(0x10de));
    assert_eq!(maker(::wgpu::Backend::Dx12, 0x1002), Maker::Pci(0x1002));
}
