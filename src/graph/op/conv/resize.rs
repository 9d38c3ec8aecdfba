//! Resampling along axes.
//!
//! ONNX `Upsample` 7 (scales as attribute), 9 (as operand); `Resize` 10 (like `Upsample`), 11
//! (coordinate modes, cubic, sizes), 13, 18 (antialias, axes, aspect ratio), 19
//! (`half_pixel_symmetric`) to 27. Scales are constant; sizes may be symbolic expressions or data.
//! Coordinates are exact: a scale is the ratio of two sizes or exactly the given `f32`.

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, onnx, operand, window,
};
use crate::lower::LowerCx;
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact};
use crate::tensor::HostTensor;
use ratio::Ratio;
use taps::Taps;

mod lower;
mod ratio;
mod taps;

pub use crate::tensor::resample::{Mode, Nearest};

/// Mapping from positions in the result to positions in the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates {
    /// Centers of elements are halfway between integers.
    HalfPixel,
    /// Like `HalfPixel`, but aligned at the center of the result, whose size is rounded.
    HalfPixelSymmetric,
    /// Like `HalfPixel`, but 0 for a result of one element.
    PytorchHalfPixel,
    /// The centers of the outermost elements coincide.
    AlignCorners,
    /// The first elements coincide.
    Asymmetric,
    /// Like `HalfPixel`, but not shifted back by half an element.
    TfHalfPixelForNn,
    /// Samples a region of the operand, given as operand 1.
    TfCropAndResize,
}

/// How the aspect ratio affects the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Use the given sizes.
    Stretch,
    /// Keep the ratio; no size is larger than given.
    NotLarger,
    /// Keep the ratio; no size is smaller than given.
    NotSmaller,
}

/// Operands from opset 11 on: the tensor, a region, scales, sizes. Before: the tensor and scales.
#[derive(Clone, Debug, PartialEq)]
pub struct Resize {
    /// `Upsample` or `Resize`, used in messages.
    pub name: &'static str,
    /// Index of the operand that holds scales.
    pub scales_at: usize,
    /// Scales from the attribute.
    pub scales: Option<Vec<f32>>,
    pub mode: Mode,
    pub coordinates: Coordinates,
    /// Along an axis that shrinks, interpolate over all elements that one result element covers.
    pub antialias: bool,
    /// The axes to which scales, sizes and region apply; `None` for all.
    pub axes: Option<Vec<i64>>,
    /// Treatment of the aspect ratio.
    pub policy: Policy,
    /// The parameter of cubic interpolation.
    pub cubic: f32,
    /// Elements outside have weight 0, and the remaining weights are normalized.
    pub exclude_outside: bool,
    /// Value outside the operand for [`Coordinates::TfCropAndResize`].
    pub outside: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    size: usize,
    out: usize,
    scale: Ratio,
    region: (f32, f32),
}

/// Maximum denominator of a scale that is treated as a fraction.
const DENOMINATORS: i64 = 64;
/// The fraction must agree with the scale for sizes up to this one.
const CHECKED: i64 = 4096;

/// The fraction `p / q` such that `floor(n * p / q)` equals `floor(n * scale)` in `f32` arithmetic
/// for all relevant sizes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the comparison is about f32 arithmetic"
)]
fn fraction(scale: f32) -> Option<(i64, i64)> {
    if !(scale.is_finite() && scale > 0.0 && scale < 1e6) {
        return None;
    }
    (1..=DENOMINATORS).find_map(|q| {
        let p = (f64::from(scale) * q as f64).round() as i64;
        let close = p > 0 && ((p as f64 / q as f64) as f32 - scale).abs() <= scale * 4.0 * f32::EPSILON;
        let agrees = || (1..=CHECKED).all(|n| n * p / q == (n as f32 * scale).floor() as i64);
        (close && agrees()).then_some((p, q))
    })
}

/// `floor(size * scale)`; `None` for a symbolic size with a scale that is not a simple fraction.
fn scaled(size: &Dim, scale: f32) -> OpResult<Option<Dim>> {
    if let Some((p, q)) = fraction(scale) {
        return Ok(Some(size.mul(&p.into())?.floor_div(q)?));
    }
    if !(scale.is_finite() && scale > 0.0) {
        return Err(OpError::expected("scale", "a number above 0", scale));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "ONNX multiplies and rounds in f32"
    )]
    Ok(size
        .as_const()
        .map(|n| Dim::from((n as f32 * scale).floor() as i64)))
}

/// An error unless there is a scale or size for each of the axes.
fn one_for_each_axis(found: usize, axes: usize) -> OpResult<()> {
    if found == axes {
        Ok(())
    } else {
        Err(OpError::mismatch(
            "numbers of scales or sizes and axes",
            found,
            axes,
        ))
    }
}

impl Resize {
    /// True if operand `i` is given and not empty; an empty one counts as omitted.
    fn given(cx: &InferCx<'_>, i: usize) -> bool {
        cx.opt(i).is_some_and(|f| !f.shape.0.iter().any(|d| d.is(0)))
    }

    /// The axes of an operand of this shape; `list` holds the resized ones.
    fn host_axes(&self, inputs: &Inputs<'_>, shape: &[usize], list: &[usize]) -> OpResult<Vec<Axis>> {
        let given = |i: usize| inputs.get(i).copied().flatten().filter(|t| !t.is_empty());
        let scales = match (&self.scales, given(self.scales_at)) {
            (Some(list), _) => Some(list.clone()),
            (None, Some(t)) => Some(t.to_f32()?.into_owned()),
            (None, None) => None,
        };
        let mut axes: Vec<Axis> = shape
            .iter()
            .map(|n| Axis {
                size: *n,
                out: *n,
                scale: Ratio::ONE,
                region: (0.0, 1.0),
            })
            .collect();
        let count = |found| one_for_each_axis(found, list.len());
        if let Some(scales) = scales {
            count(scales.len())?;
            for (a, scale) in list.iter().zip(scales) {
                let out = scaled(&Dim::from_usize(axes[*a].size), scale)?.unwrap_or_default();
                axes[*a].out = crate::graph::op::fixed_size(&out)?;
                axes[*a].scale = Ratio::of(scale);
            }
        } else {
            let sizes = operand(inputs, self.scales_at + 1)?.to_i64()?;
            count(sizes.len())?;
            let uniform = self.uniform(list, shape, &sizes);
            for (a, size) in list.iter().zip(sizes) {
                let axis = &mut axes[*a];
                match uniform {
                    Some(scale) => (axis.out, axis.scale) = (scale.rounded(axis.size)?, scale),
                    None => {
                        axis.out = crate::graph::op::fixed_size(&Dim::from(size))?;
                        axis.scale = Ratio {
                            up: size,
                            down: num::signed(axis.size),
                        };
                    }
                }
            }
        }
        if self.coordinates == Coordinates::TfCropAndResize {
            let region = given(1)
                .ok_or_else(|| OpError::expected("region", "a start and an end for each axis", "nothing"))?;
            let region = region.to_f32()?;
            if region.len() != 2 * list.len() {
                return Err(OpError::mismatch(
                    "numbers of region bounds and axis ends",
                    region.len(),
                    2 * list.len(),
                ));
            }
            let (starts, ends) = region.split_at(list.len());
            for (a, bounds) in list.iter().zip(starts.iter().copied().zip(ends.iter().copied())) {
                axes[*a].region = bounds;
            }
        }
        Ok(axes)
    }

    /// The common scale that keeps the aspect ratio, for constant sizes.
    fn uniform(&self, axes: &[usize], shape: &[usize], sizes: &[i64]) -> Option<Ratio> {
        let of = |(a, up): (&usize, &i64)| {
            let down = shape.get(*a).map(|n| num::signed(*n));
            down.map(|down| Ratio { up: *up, down })
        };
        let ratios = axes.iter().zip(sizes).filter_map(of);
        match self.policy {
            Policy::Stretch => None,
            Policy::NotLarger => ratios.min_by(Ratio::compare),
            Policy::NotSmaller => ratios.max_by(Ratio::compare),
        }
    }
}

impl Op for Resize {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let axes = crate::graph::op::axes(self.axes.as_deref(), x.shape.rank())?;
        if !x.dtype.is_float() && !matches!(self.mode, Mode::Nearest(_)) {
            return Err(OpError::Unsupported(format!("interpolation of {}", x.dtype)));
        }
        let mut shape = x.shape.clone();
        let count = |found| one_for_each_axis(found, axes.len());
        let scales = match &self.scales {
            Some(list) => Some(list.clone()),
            None if Self::given(cx, self.scales_at) => {
                let fact = cx.fact(self.scales_at)?;
                match fact.as_const() {
                    Some(t) => Some(t.to_f32()?.into_owned()),
                    None => {
                        // The resulting sizes are known only in the run.
                        for a in &axes {
                            shape.0[*a] = cx.unknown(0, *a, None);
                        }
                        return Ok(vec![Fact::new(x.dtype, shape)]);
                    }
                }
            }
            None => None,
        };
        if let Some(scales) = scales {
            count(scales.len())?;
            for (a, scale) in axes.iter().zip(scales) {
                shape.0[*a] = match scaled(&shape.0[*a], scale)? {
                    Some(size) => size,
                    None => cx.unknown(0, *a, None),
                };
            }
            return Ok(vec![Fact::new(x.dtype, shape)]);
        }
        if !Self::given(cx, self.scales_at + 1) {
            return Err(OpError::expected("scales or sizes", "one of them", "neither"));
        }
        let sizes = cx.sizes(self.scales_at + 1)?;
        count(sizes.len())?;
        for (a, size) in axes.iter().zip(&sizes).filter(|(_, size)| !size.is(0)) {
            let from = &x.shape.0[*a];
            if from != size {
                cx.require(from.sub(&1.into())?, "size to resize from minus 1")?;
            }
        }
        if self.policy == Policy::Stretch {
            for (a, size) in axes.iter().zip(sizes) {
                cx.require(size.clone(), "size to resize to")?;
                shape.0[*a] = size;
            }
            return Ok(vec![Fact::new(x.dtype, shape)]);
        }
        let numbers: Option<Vec<i64>> = sizes.iter().map(Dim::as_const).collect();
        let fixed: Option<Vec<usize>> = axes.iter().map(|a| as_usize(&x.shape.0[*a])).collect();
        let known = fixed.zip(numbers).and_then(|(fixed, sizes)| {
            let all: Vec<usize> = (0..fixed.len()).collect();
            let scale = self.uniform(&all, &fixed, &sizes)?;
            let sizes = fixed.into_iter().map(|n| scale.rounded(n));
            sizes.collect::<OpResult<Vec<_>>>().ok()
        });
        for (i, a) in axes.iter().enumerate() {
            shape.0[*a] = match known.as_ref().and_then(|k| k.get(i)) {
                Some(n) => Dim::from_usize(*n),
                None => cx.unknown(0, *a, None),
            };
        }
        Ok(vec![Fact::new(x.dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let list = crate::graph::op::axes(self.axes.as_deref(), x.shape().len())?;
        let axes = self.host_axes(inputs, x.shape(), &list)?;
        if let Some(a) = axes.iter().find(|a| a.size == 0 && a.out > 0) {
            return Err(OpError::expected("size to resize from", "1 or more", a.size));
        }
        let tables: Vec<Option<Taps>> = axes
            .iter()
            .enumerate()
            .map(|(i, a)| {
                (list.contains(&i) && !self.is_identity(a))
                    .then(|| self.taps(a))
                    .transpose()
            })
            .collect::<OpResult<_>>()?;
        if !x.dtype().is_float()
            || matches!(self.mode, Mode::Nearest(_)) && tables.iter().flatten().all(|t| t.is_pick())
        {
            return Ok(vec![pick(x, &axes, &tables)?]);
        }
        let (mut data, mut shape) = (x.to_f32()?.into_owned(), x.shape().to_vec());
        for (i, table) in tables.iter().enumerate() {
            let Some(table) = table else { continue };
            (data, shape) = interpolate(&data, &shape, i, table)?;
        }
        if tables.iter().flatten().any(Taps::leaves_operand) {
            let inside = |at: &[usize]| {
                tables
                    .iter()
                    .zip(at)
                    .all(|(t, i)| t.as_ref().is_none_or(|t| t.is_inside(*i)))
            };
            for (at, v) in window::indices(&shape).zip(&mut data) {
                if !inside(&at) {
                    *v = self.outside;
                }
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &data)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        lower::emit(self, cx)
    }

    fn reads(&self, input: usize) -> bool {
        input == 0 || input == 1 && self.coordinates == Coordinates::TfCropAndResize
    }
}

impl Resize {
    /// The operator of opset 10, which takes the tensor and scales, with the defaults of later
    /// ones.
    pub fn plain(mode: Mode, coordinates: Coordinates) -> Self {
        Self {
            name: "Resize",
            scales_at: 1,
            scales: None,
            mode,
            coordinates,
            antialias: false,
            axes: None,
            policy: Policy::Stretch,
            cubic: -0.75,
            exclude_outside: false,
            outside: 0.0,
        }
    }

    /// True for an axis that does not change. Like ONNX Runtime, treats scale 1 as unchanged in
    /// every mode except regions.
    fn is_identity(&self, a: &Axis) -> bool {
        a.size == a.out && a.scale.is_one() && self.coordinates != Coordinates::TfCropAndResize
    }
}

/// Copies elements without arithmetic, for any type.
fn pick(x: &HostTensor, axes: &[Axis], tables: &[Option<Taps>]) -> OpResult<HostTensor> {
    let (mut bytes, mut shape) = (x.bytes()?.to_vec(), x.shape().to_vec());
    for (i, (table, axis)) in tables.iter().zip(axes).enumerate() {
        let Some(table) = table else { continue };
        let inner = crate::graph::op::count(num::part(&shape, i + 1..)?)?.saturating_mul(x.dtype().size());
        shape[i] = axis.out;
        let mut out =
            crate::graph::op::filled(&[crate::graph::op::count(num::part(&shape, ..=i)?)?, inner], 0u8)?;
        if inner > 0 && axis.out > 0 {
            for (from, to) in bytes
                .chunks_exact(axis.size * inner)
                .zip(out.chunks_exact_mut(axis.out * inner))
            {
                for (o, to) in to.chunks_exact_mut(inner).enumerate() {
                    let at = table.first(o) * inner;
                    to.copy_from_slice(num::part(from, at..at + inner)?);
                }
            }
        }
        bytes = out;
    }
    Ok(HostTensor::from_bytes(x.dtype(), &shape, &bytes)?)
}

fn interpolate(x: &[f32], shape: &[usize], axis: usize, table: &Taps) -> OpResult<(Vec<f32>, Vec<usize>)> {
    let (size, inner) = (shape[axis], shape.iter().skip(axis + 1).product::<usize>());
    let mut shape = shape.to_vec();
    shape[axis] = table.len();
    let mut y = crate::graph::op::filled(&shape, 0f32)?;
    if size * inner == 0 || y.is_empty() {
        return Ok((y, shape));
    }
    for (x, y) in x
        .chunks_exact(size * inner)
        .zip(y.chunks_exact_mut(table.len() * inner))
    {
        quota::check()?;
        for (o, y) in y.chunks_exact_mut(inner).enumerate() {
            for (i, w) in table.of(o) {
                for (y, x) in y.iter_mut().zip(num::part(x, i * inner..)?) {
                    *y += w * x;
                }
            }
        }
    }
    Ok((y, shape))
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let name = if a.op_type() == "Upsample" {
        "Upsample"
    } else {
        "Resize"
    };
    let old = name == "Upsample" || a.opset() < 11;
    let bad = |what: &str, found: &str| {
        Err(OpError::expected(
            format!("attribute `{what}`"),
            "a mode that ONNX defines",
            found,
        ))
    };
    let nearest = match a.string("nearest_mode")?.as_deref() {
        _ if old => Nearest::Simple,
        None | Some("round_prefer_floor") => Nearest::RoundPreferFloor,
        Some("round_prefer_ceil") => Nearest::RoundPreferCeil,
        Some("floor") => Nearest::Floor,
        Some("ceil") => Nearest::Ceil,
        Some(other) => return bad("nearest_mode", other),
    };
    let mode = match a.string("mode")?.as_deref() {
        None | Some("nearest") => Mode::Nearest(nearest),
        Some("linear" | "bilinear") => Mode::Linear,
        Some("cubic") => Mode::Cubic,
        Some(other) => return bad("mode", other),
    };
    let coordinates = match a.string("coordinate_transformation_mode")?.as_deref() {
        _ if old => Coordinates::Asymmetric,
        None | Some("half_pixel") => Coordinates::HalfPixel,
        Some("half_pixel_symmetric") => Coordinates::HalfPixelSymmetric,
        Some("pytorch_half_pixel") => Coordinates::PytorchHalfPixel,
        Some("align_corners") => Coordinates::AlignCorners,
        Some("asymmetric") => Coordinates::Asymmetric,
        Some("tf_half_pixel_for_nn") => Coordinates::TfHalfPixelForNn,
        Some("tf_crop_and_resize") => Coordinates::TfCropAndResize,
        Some(other) => return bad("coordinate_transformation_mode", other),
    };
    let policy = match a.string("keep_aspect_ratio_policy")?.as_deref() {
        None | Some("stretch") => Policy::Stretch,
        Some("not_larger") => Policy::NotLarger,
        Some("not_smaller") => Policy::NotSmaller,
        Some(other) => return bad("keep_aspect_ratio_policy", other),
    };
    let scales = if name == "Upsample" && a.opset() < 9 {
        Some(
            a.floats("scales")?
                .ok_or_else(|| OpError::expected("attribute `scales`", "floats", "nothing"))?,
        )
    } else {
        None
    };
    let flag = |name| Ok::<_, OpError>(a.int(name)?.unwrap_or(0) != 0);
    Ok(Box::new(Resize {
        name,
        scales_at: if old { 1 } else { 2 },
        scales,
        mode,
        coordinates,
        antialias: flag("antialias")?,
        axes: a.ints("axes")?,
        policy,
        cubic: a.float("cubic_coeff_a")?.unwrap_or(-0.75),
        exclude_outside: flag("exclude_outside")?,
        outside: a.float("extrapolation_value")?.unwrap_or(0.0),
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Upsample", 7, 2), onnx("Resize", 10, 4)],
    import,
    kernels: &[&crate::kernels::resize::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    use Coordinates::{
        AlignCorners, Asymmetric, HalfPixel, HalfPixelSymmetric, PytorchHalfPixel, TfCropAndResize,
        TfHalfPixelForNn,
    };
    use Mode::{Cubic, Linear};
    let floats = |v: &[f32]| HostTensor::from_f32(&[v.len()], v).map_or_else(|_| input(&[v.len()]), constant);
    let sizes = |v: &[i64]| input(&[v.len()]).values(v).constant();
    let scaled = |op, x: &[usize], v: &[f32]| Case::new(op, vec![input(x), floats(v)]);
    // The operand of sizes comes after that of scales, which is empty here.
    let by_sizes = |op, x: &[usize], v: &[i64]| Case::new(op, vec![input(x), floats(&[]), sizes(v)]);
    let along = |axes: &[i64], op| Resize {
        axes: Some(axes.to_vec()),
        ..op
    };
    let floor = Mode::Nearest(Nearest::Floor);
    let nearest = Resize::plain(floor, Asymmetric);
    let linear = Resize::plain(Linear, HalfPixel);
    let cubic = Resize::plain(Cubic, HalfPixel);
    let antialias = Resize {
        antialias: true,
        ..linear.clone()
    };
    let inside = Resize {
        exclude_outside: true,
        ..cubic.clone()
    };
    let not_larger = Resize {
        policy: Policy::NotLarger,
        ..along(&[2, 3], Resize::plain(floor, HalfPixel))
    };
    let mut all = vec![
        scaled(nearest.clone(), &[1, 2, 3, 5], &[1.0, 1.0, 2.0, 2.0]),
        scaled(nearest.clone(), &[1, 2, 6, 9], &[1.0, 1.0, 0.5, 1.0 / 3.0]),
        scaled(linear.clone(), &[1, 2, 3, 5], &[1.0, 1.0, 1.5, 2.5]),
        scaled(cubic, &[1, 1, 4, 5], &[1.0, 1.0, 2.0, 0.75]),
        by_sizes(Resize::plain(Linear, AlignCorners), &[1, 2, 3, 4], &[1, 2, 7, 5]),
        by_sizes(
            along(&[-1, 1], Resize::plain(Cubic, PytorchHalfPixel)),
            &[2, 4, 6],
            &[3, 5],
        ),
        by_sizes(antialias, &[1, 1, 9, 8], &[1, 1, 4, 3]).host_only("antialias"),
        by_sizes(linear.clone(), &[1, 3, 4, 5], &[2, 3, 8, 4]).host_only("three axes"),
        by_sizes(linear.clone(), &[1, 3, 1, 1], &[1, 3, 4, 5]),
        by_sizes(linear, &[2, 3, 9], &[2, 3, 14]),
        by_sizes(inside, &[1, 2, 4, 5], &[1, 2, 9, 3]),
        Case::new(
            along(&[1], nearest),
            vec![input(&[2, 3, 5]).ints32(-9, 9), floats(&[2.0])],
        ),
        by_sizes(not_larger, &[1, 1, 4, 6], &[9, 8]),
    ];
    let rules = [
        Nearest::RoundPreferFloor,
        Nearest::RoundPreferCeil,
        Nearest::Floor,
        Nearest::Ceil,
        Nearest::Simple,
    ];
    let by_rule = |rule| Resize::plain(Mode::Nearest(rule), HalfPixel);
    all.extend(rules.map(|rule| by_sizes(by_rule(rule), &[1, 3, 4, 7], &[1, 3, 8, 5])));
    let coordinates = [
        HalfPixel,
        HalfPixelSymmetric,
        PytorchHalfPixel,
        AlignCorners,
        Asymmetric,
        TfHalfPixelForNn,
    ];
    all.extend(coordinates.map(|c| by_sizes(Resize::plain(Linear, c), &[2, 1, 5, 7], &[2, 1, 9, 4])));
    all.extend(exact());
    let region = |mode| Resize {
        scales_at: 2,
        outside: 9.5,
        ..Resize::plain(mode, TfCropAndResize)
    };
    let bounds = floats(&[0.0, 0.0, -0.25, 0.25, 1.0, 1.0, 0.75, 1.125]);
    let regions = [Linear, floor, Cubic];
    all.extend(regions.map(|mode| {
        let x = input(&[1, 2, 5, 6]);
        Case::new(
            region(mode),
            vec![x, bounds.clone(), floats(&[]), sizes(&[1, 2, 7, 5])],
        )
    }));
    all
}

/// Coordinates that are integers or ties, which rounding would move.
fn exact() -> Vec<Case> {
    use Coordinates::{AlignCorners, Asymmetric, HalfPixel, HalfPixelSymmetric, TfHalfPixelForNn};
    use Nearest::{Ceil, Floor, RoundPreferCeil, RoundPreferFloor};
    let floats = |v: &[f32]| HostTensor::from_f32(&[v.len()], v).map_or_else(|_| input(&[v.len()]), constant);
    let by_sizes = [
        (Floor, Asymmetric, [30, 50], [9, 15]),
        (Ceil, Asymmetric, [10, 50], [3, 15]),
        (RoundPreferCeil, Asymmetric, [10, 14], [3, 4]),
        (RoundPreferFloor, HalfPixel, [30, 10], [9, 3]),
        (RoundPreferCeil, HalfPixel, [30, 10], [9, 3]),
        (Floor, TfHalfPixelForNn, [27, 45], [21, 35]),
        (Ceil, AlignCorners, [29, 8], [43, 50]),
    ];
    let by_sizes = by_sizes.map(|(rule, coordinates, [h, w], [out_h, out_w])| {
        let sizes = input(&[3]).values(&[2, out_h, out_w]).constant();
        let op = Resize::plain(Mode::Nearest(rule), coordinates);
        Case::new(op, vec![input(&[2, h, w]), floats(&[]), sizes])
    });
    let by_scales = [
        (Floor, Asymmetric, [0.3, 0.7]),
        (RoundPreferCeil, HalfPixel, [1.0 / 3.0, 2.6]),
        (RoundPreferFloor, HalfPixelSymmetric, [1.3, 0.9]),
    ];
    let by_scales = by_scales.map(|(rule, coordinates, [h, w])| {
        let op = Resize::plain(Mode::Nearest(rule), coordinates);
        Case::new(op, vec![input(&[2, 31, 50]), floats(&[1.0, h, w])])
    });
    by_sizes.into_iter().chain(by_scales).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_elements_are_exact() {
        let run = |op: Resize, n: usize, out: i64| {
            let x: Vec<f32> = (0u16..).map(f32::from).take(n).collect();
            let x = HostTensor::from_f32(&[n], &x).unwrap();
            let none = HostTensor::from_f32(&[0], &[]).unwrap();
            let sizes = HostTensor::from_i64(&[1], &[out]).unwrap();
            let y = op.eval(&[Some(&x), Some(&none), Some(&sizes)]).unwrap();
            y[0].to_f32().unwrap().into_owned()
        };
        let of = |rule, coordinates| Resize::plain(Mode::Nearest(rule), coordinates);
        let floor = run(of(Nearest::Floor, Coordinates::Asymmetric), 50, 15);
        let wanted = [
            0.0, 3.0, 6.0, 10.0, 13.0, 16.0, 20.0, 23.0, 26.0, 30.0, 33.0, 36.0, 40.0, 43.0, 46.0,
        ];
        assert_eq!(floor, wanted);
        let tie = |rule| run(of(rule, Coordinates::Asymmetric), 14, 4);
        assert_eq!(tie(Nearest::RoundPreferCeil), [0.0, 4.0, 7.0, 11.0]);
        assert_eq!(tie(Nearest::RoundPreferFloor), [0.0, 3.0, 7.0, 10.0]);
        let tie = |rule| run(of(rule, Coordinates::HalfPixel), 10, 3);
        assert_eq!(tie(Nearest::RoundPreferCeil), [1.0, 5.0, 8.0]);
        assert_eq!(tie(Nearest::RoundPreferFloor), [1.0, 4.0, 8.0]);
    }

    #[test]
    fn scales_are_fractions() {
        assert_eq!(fraction(2.0), Some((2, 1)));
        assert_eq!(fraction(0.75), Some((3, 4)));
        assert_eq!(fraction(1.0 / 3.0), Some((1, 3)));
        assert_eq!(fraction(std::f32::consts::PI), None);
        assert_eq!(
            scaled(&Dim::symbol("h"), 1.5).unwrap(),
            Some(Dim::parse("3*h//2").unwrap())
        );
        assert_eq!(scaled(&Dim::symbol("h"), std::f32::consts::PI).unwrap(), None);
        assert!(scaled(&Dim::symbol("h"), -1.0).is_err());
        assert!(scaled(&Dim::symbol("h"), f32::NAN).is_err());
    }
}
