//! Operands that are read through images.

use super::*;
use crate::backend::ImageUse;

static FOURS: Text = Text {
    name: "fours",
    sources: ByLanguage {
        opencl_c: Some("KERNEL {\n  uint i = get_global_id(0);\n  if (i < p.n) y_put4(i, x_at4(i));\n}\n"),
        wgsl: None,
    },
    ..TEXT
};
/// The same, which no compiler takes with an image.
static NO_IMAGES: Text = Text {
    name: "fours",
    sources: ByLanguage {
        opencl_c: Some(
            "#ifdef IMAGE_X\n#error no images\n#endif\nKERNEL {\n  uint i = get_global_id(0);\n  if (i < p.n) y_put4(i, x_at4(i));\n}\n",
        ),
        wgsl: None,
    },
    ..TEXT
};
const TEXT: Text = Text::new(
    "",
    &[("n", FieldTy::U32)],
    &[
        Arg {
            name: "x",
            role: Role::In,
            ty: Ty::Elem,
        },
        Arg {
            name: "y",
            role: Role::Out,
            ty: Ty::Elem,
        },
    ],
);

fn by_image(kernel: &'static Text, dtype: DType, kind: ImageKind) -> KernelSpec {
    KernelSpec {
        images: BTreeMap::from([(0, kind)]),
        ..plain(kernel, 64, &[dtype, DType::F32])
    }
}

/// Copies 4 * n elements behind others through the kernel, of one recording, some times with other
/// contents.
fn check(cl: &mut OpenCl, spec: &KernelSpec, dtype: DType, n: u32) {
    let count = 4 * n as usize;
    let size = dtype.device_bytes() as u64;
    let align = cl.caps().profile.view_align.max(cl.caps().profile.images.room());
    let first = 3 * align;
    let source = buffer(cl, "source", first + count as u64 * size).buffer;
    let x = View {
        buffer: source,
        offset: first,
        len: count as u64 * size,
    };
    let y = buffer(cl, "y", count as u64 * 4);
    let staged = buffer(cl, "staged", x.len);
    let kernel = cl.compile(spec).unwrap();
    let commands = [
        Command::Copy { src: staged, dst: x },
        dispatch(kernel, &[x, y], 0, 0..4),
    ];
    let recording = cl.record(&commands).unwrap();
    let launch = Launch {
        params: n.to_le_bytes().to_vec(),
        grids: vec![[n.div_ceil(64), 1, 1]],
    };
    for factor in [1.0, -3.0, 0.5, 2.0] {
        let wanted: Vec<f32> = values(count)
            .iter()
            .map(|v| f16::from_f32(v * factor).to_f32())
            .collect();
        cl.write(staged, &to_bytes(&wanted, dtype)).unwrap();
        cl.submit(recording, &launch).unwrap();
        assert_eq!(
            read(cl, y),
            to_bytes(&wanted, DType::F32),
            "{spec}, {n} pixels, times {factor}"
        );
    }
    cl.release(recording);
    for buffer in [source, y.buffer, staged.buffer] {
        cl.destroy_buffer(buffer);
    }
}

#[test]
fn images_show_what_is_in_buffers() {
    let Some(mut cl) = device() else { return };
    for kind in ImageKind::ALL {
        for dtype in [DType::F16, DType::F32] {
            for n in [1, 64, 255, 256, 1000] {
                let before = cl.stats().images;
                check(&mut cl, &by_image(&FOURS, dtype, kind), dtype, n);
                // Elsewhere the kernel reads the buffer.
                let made = u64::from(cl.caps().profile.images.offers(kind) && !cl.images_refused);
                assert_eq!(cl.stats().images - before, made, "{kind} of {dtype}");
            }
        }
    }
}

/// Enough elements that each is above a slice on a CPU.
#[test]
fn recordings_and_slices_take_images() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    for way in recordings::ways().into_iter().chain([ReplayMode::Off]) {
        for kind in ImageKind::ALL {
            let mut cl = opened(way, Some(1));
            check(&mut cl, &by_image(&FOURS, DType::F16, kind), DType::F16, 1 << 19);
        }
    }
}

#[test]
fn a_kind_that_is_asked_for_is_there_or_an_error() {
    if !has_device(BackendKind::OpenCl) {
        return;
    }
    let offered = open().caps().profile.images;
    assert_eq!(offered.reads, None, "CPUs do not gain by images");
    for kind in ImageKind::ALL {
        let opened = OpenCl::open(&OpenOptions {
            images: ImageUse::Of(kind),
            ..OpenOptions::default()
        });
        match opened {
            Ok(cl) => {
                assert!(offered.offers(kind));
                assert_eq!(cl.caps().profile.images.reads, Some(kind));
                let align = cl.caps().profile.images.align(kind, Pixel::Floats);
                assert!(cl.caps().profile.view_align.is_multiple_of(align));
            }
            Err(e) => {
                assert!(!offered.offers(kind));
                assert!(e.to_string().contains(kind.name()), "{e}");
            }
        }
    }
    let off = OpenOptions {
        images: ImageUse::Off,
        ..OpenOptions::default()
    };
    assert!(
        ImageKind::ALL
            .iter()
            .all(|k| !OpenCl::open(&off).unwrap().caps().profile.images.offers(*k))
    );
}

#[test]
fn a_kernel_that_does_not_compile_with_images_reads_buffers() {
    let Some(mut cl) = device() else { return };
    let spec = by_image(&NO_IMAGES, DType::F16, ImageKind::Image1dBuffer);
    let id = cl.compile(&spec).unwrap();
    assert_eq!(cl.compile(&spec.without_images()).unwrap(), id);
    assert!(cl.images_refused);
    check(&mut cl, &spec, DType::F16, 100);
    check(
        &mut cl,
        &by_image(&FOURS, DType::F16, ImageKind::Image1dBuffer),
        DType::F16,
        100,
    );
    assert_eq!(cl.stats().images, 0, "none is asked of a driver that refused one");
}
