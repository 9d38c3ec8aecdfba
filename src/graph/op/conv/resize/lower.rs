//! Resampling along one or two axes on a device.

use super::ratio::{Line, Ratio};
use super::{Coordinates, Mode, Policy, Resize};
use crate::graph::op::{OpError, OpResult, axes};
use crate::kernels::resize::{Args, COORDINATES, HIGH, INSIDE_ONLY, KERNEL, ROUNDING, TAPS};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Shape, product};

/// Kernels compute coordinates exactly along axes of up to this many elements.
const MAX_SIZE: i64 = 1 << 25;

/// An axis that is resized.
#[derive(Clone, Copy)]
struct Changed {
    axis: usize,
    /// `None` for the ratio of the sizes.
    scale: Option<Ratio>,
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
        let given = |s: &Vec<f32>| s.get(i).map(|s| Ratio::of(*s));
        let scale = scales.as_ref().map_or(uniform, given);
        let bound = |i: usize, or: f32| region.as_ref().map_or(Some(or), |r| r.get(i).copied());
        let region = bound(i, 0.0).zip(bound(i + axes.len(), 1.0));
        let region =
            region.ok_or_else(|| OpError::expected("bounds of a region", "two for each axis", axes.len()))?;
        let (from, to) = (x.0.get(*a), out.0.get(*a));
        if scale.is_none_or(Ratio::is_one) && from == to && region == (0.0, 1.0) {
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

impl Changed {
    /// The coordinates along the axis, as the kernel computes them: step, first and unit.
    fn line(self, op: &Resize, cx: &mut LowerCx<'_>, size: &Dim, out: &Dim) -> OpResult<[Dim; 3]> {
        let ratio = self
            .scale
            .map_or_else(|| [out.clone(), size.clone()], Ratio::dims);
        if op.coordinates == Coordinates::TfCropAndResize {
            return Ok([0, 0, 1].map(Dim::from));
        }
        let line = Line::of(op.coordinates, &ratio, size, out)?;
        for (n, what) in [(size, "from"), (out, "to")] {
            if n.as_const().is_some_and(|n| n > MAX_SIZE) {
                return Err(OpError::NoKernel(format!(
                    "resizing {what} {n} elements of an axis"
                )));
            }
            let what = format!("{MAX_SIZE} (limit of kernels) minus size to resize {what}");
            cx.require(Dim::from(MAX_SIZE).sub(n)?, &what);
        }
        let fits = |d: &Dim, most: i64| d.as_const().is_none_or(|n| n.abs() <= most);
        let most = 4 * MAX_SIZE;
        let fits = fits(&line.step, 1 << 31) && fits(&line.unit, most) && fits(&line.first, 1 << 30);
        if !fits {
            return Err(OpError::NoKernel(format!("a scale of {}/{}", ratio[0], ratio[1])));
        }
        Ok([line.step, line.first, line.unit])
    }
}

/// Numbers of the kernel: coordinates, taps, rounding.
fn mode_numbers(op: &Resize) -> [(&'static str, i64); 3] {
    let coordinates = match op.coordinates {
        Coordinates::PytorchHalfPixel | Coordinates::AlignCorners => 1,
        Coordinates::TfCropAndResize => 2,
        _ => 0,
    };
    let rounding = match op.mode {
        Mode::Nearest(rule) => rule as i64,
        _ => 0,
    };
    [
        (COORDINATES, coordinates),
        (TAPS, num::signed(op.mode.taps())),
        (ROUNDING, rounding),
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
        scale: Some(Ratio::ONE),
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
    let part = |range: std::ops::Range<usize>| OpResult::Ok(product(num::part(&x.0, range)?)?);
    let size = |shape: &Shape, a: usize| shape.0.get(a).cloned().unwrap_or_default();
    // With a single axis, treat everything before it as one unchanged axis.
    let (in_h, out_h, mid) = match high {
        Some(h) => (size(&x, h.axis), size(&out, h.axis), part(h.axis + 1..wide.axis)?),
        None => (one.clone(), one, part(0..wide.axis)?),
    };
    let count = out.count()?;
    let mut call = Call::new(&KERNEL, 64).grid(count.ceil_div(2 * 64)?, 1, 1);
    let flags = [(HIGH, high.is_some()), (INSIDE_ONLY, op.exclude_outside)];
    let flags = flags
        .into_iter()
        .filter(|(_, set)| *set)
        .map(|(name, _)| (name, 1));
    for (name, number) in flags.chain(mode_numbers(op)) {
        call = call.define(name, number);
    }
    let high = high.unwrap_or(unchanged);
    let (in_w, out_w) = (size(&x, wide.axis), size(&out, wide.axis));
    let [step_h, first_h, unit_h] = high.line(op, cx, &in_h, &out_h)?;
    let [step_w, first_w, unit_w] = wide.line(op, cx, &in_w, &out_w)?;
    let args = Args {
        x: cx.input(0)?,
        y: cx.output(0)?,
        count,
        in_h,
        out_h,
        mid,
        in_w,
        out_w,
        inner: part(wide.axis + 1..x.rank())?,
        step_h,
        unit_h,
        step_w,
        unit_w,
        first_h,
        first_w,
        start_h: high.region.0,
        end_h: high.region.1,
        start_w: wide.region.0,
        end_w: wide.region.1,
        cubic: op.cubic,
        outside: op.outside,
    };
    cx.emit(call, args)
}
