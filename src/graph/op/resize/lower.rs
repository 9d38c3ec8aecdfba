//! Resampling along one or two axes on a device.

use super::{Coordinates, Mode, Nearest, Policy, Resize};
use crate::graph::op::{OpError, OpResult, axes};
use crate::lower::{Call, LowerCx};
use crate::shape::{Dim, product};

crate::kernel! {
    pub(super) static KERNEL: TypedKernel<Args> = "resize" {
        count, in_h, out_h, mid, in_w, out_w, inner: U32;
        scale_h, scale_w, start_h, end_h, start_w, end_w, cubic, outside: F32
    } [x: In, y: Out]
    .linear()
}

/// An axis that is resized.
#[derive(Clone, Copy)]
struct Changed {
    axis: usize,
    /// `None` for the ratio of the sizes.
    scale: Option<f32>,
    region: (f32, f32),
}

/// The resized axes, outermost first.
fn changed(op: &Resize, cx: &LowerCx<'_>) -> OpResult<Vec<Changed>> {
    let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
    let axes = axes(op.axes.as_deref(), x.rank())?;
    let data = |what: &str| OpError::NoKernel(format!("{what} that are not constant"));
    let floats = |i: usize, what: &str| -> OpResult<Option<Vec<f32>>> {
        if !cx.has(i) {
            return Ok(None);
        }
        let fact = cx.fact(i)?;
        if fact.shape.0.iter().any(|d| d.is(0)) {
            return Ok(None);
        }
        Ok(Some(
            fact.as_const().ok_or_else(|| data(what))?.to_f32()?.into_owned(),
        ))
    };
    let scales = match &op.scales {
        Some(list) => Some(list.clone()),
        None => floats(op.scales_at, "scales")?,
    };
    let region = match op.coordinates {
        Coordinates::TfCropAndResize => floats(1, "bounds of a region")?,
        _ => None,
    };
    let uniform = match (&scales, op.policy) {
        (None, Policy::NotLarger | Policy::NotSmaller) => {
            let sizes: Option<Vec<i64>> = cx.dims(op.scales_at + 1)?.iter().map(Dim::as_const).collect();
            let (shape, sizes) = x.as_fixed().zip(sizes).ok_or_else(|| data("sizes"))?;
            op.uniform(&axes, &shape, &sizes)
        }
        _ => None,
    };
    let mut found = Vec::new();
    for (i, a) in axes.iter().enumerate() {
        let scale = scales.as_ref().map_or(uniform, |s| s.get(i).copied());
        let bound = |i: usize, or: f32| region.as_ref().map_or(Some(or), |r| r.get(i).copied());
        let region = bound(i, 0.0).zip(bound(i + axes.len(), 1.0));
        let region =
            region.ok_or_else(|| OpError::expected("bounds of a region", "two for each axis", axes.len()))?;
        let (from, to) = (x.0.get(*a), out.0.get(*a));
        if scale.is_none_or(|s| s == 1.0) && from == to && region == (0.0, 1.0) {
            continue;
        }
        found.push(Changed {
            axis: *a,
            scale,
            region,
        });
    }
    found.sort_by_key(|c| c.axis);
    Ok(found)
}

/// Numbers of the kernel: coordinates, taps, rounding.
const fn mode_numbers(op: &Resize) -> [(&'static str, i64); 3] {
    let coordinates = match op.coordinates {
        Coordinates::HalfPixel => 0,
        Coordinates::PytorchHalfPixel => 1,
        Coordinates::HalfPixelSymmetric => 2,
        Coordinates::AlignCorners => 3,
        Coordinates::Asymmetric => 4,
        Coordinates::TfHalfPixelForNn => 5,
        Coordinates::TfCropAndResize => 6,
    };
    let (taps, rounding) = match op.mode {
        Mode::Linear => (2, 0),
        Mode::Cubic => (4, 0),
        Mode::Nearest(Nearest::Floor) => (1, 0),
        Mode::Nearest(Nearest::Ceil) => (1, 1),
        Mode::Nearest(Nearest::RoundPreferFloor) => (1, 2),
        Mode::Nearest(Nearest::RoundPreferCeil) => (1, 3),
        Mode::Nearest(Nearest::Simple) => (1, 4),
    };
    [
        ("COORDINATES", coordinates),
        ("TAPS", taps),
        ("ROUNDING", rounding),
    ]
}

pub(super) fn emit(op: &Resize, cx: &mut LowerCx<'_>) -> OpResult<()> {
    let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
    let changed = changed(op, cx)?;
    if op.antialias && !matches!(op.mode, Mode::Nearest(_)) {
        return Err(OpError::NoKernel("interpolation with `antialias`".to_owned()));
    }
    let unchanged = Changed {
        axis: 0,
        scale: Some(1.0),
        region: (0.0, 1.0),
    };
    let (high, wide) = match changed.as_slice() {
        [] => return cx.alias(0, 0),
        [w] => (None, *w),
        [h, w] => (Some(*h), *w),
        _ => {
            return Err(OpError::NoKernel(format!(
                "resizing of {} axes; kernels support up to 2",
                changed.len()
            )));
        }
    };
    let one = Dim::from(1);
    let part = |range: std::ops::Range<usize>| product(x.0.get(range).unwrap_or_default());
    let size = |shape: &crate::shape::Shape, a: usize| shape.0.get(a).cloned().unwrap_or_default();
    // With a single axis, treat everything before it as one unchanged axis.
    let (in_h, out_h, mid) = match high {
        Some(h) => (size(&x, h.axis), size(&out, h.axis), part(h.axis + 1..wide.axis)?),
        None => (one.clone(), one, part(0..wide.axis)?),
    };
    let count = out.count()?;
    let mut call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
    let flags = [
        ("HIGH", high.is_some()),
        ("BY_SIZE", wide.scale.is_none()),
        ("INSIDE_ONLY", op.exclude_outside),
    ];
    let flags = flags
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(name, _)| (name, 1));
    for (name, number) in flags.chain(mode_numbers(op)) {
        call = call.define(name, number);
    }
    let high = high.unwrap_or(unchanged);
    let args = Args {
        x: cx.input(0)?,
        y: cx.output(0)?,
        count,
        in_h,
        out_h,
        mid,
        in_w: size(&x, wide.axis),
        out_w: size(&out, wide.axis),
        inner: part(wide.axis + 1..x.rank())?,
        scale_h: high.scale.unwrap_or(1.0),
        scale_w: wide.scale.unwrap_or(1.0),
        start_h: high.region.0,
        end_h: high.region.1,
        start_w: wide.region.0,
        end_w: wide.region.1,
        cubic: op.cubic,
        outside: op.outside,
    };
    cx.emit(call, args)
}
