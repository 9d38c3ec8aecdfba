//! Grouped convolution over any number of spatial axes.
//!
//! ONNX `Conv` from opset 1 (11 and 22 change only documentation and types): `x [n, c, ..]`,
//! `w [m, c / group, kernel..]`, optional `bias [m]`; the result is `[n, m, windows..]`. Spatial
//! sizes may be symbols; window sizes must be constant.

mod cases;
mod native;
mod tiled;

use self::cases::cases;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::window::{self, Axis, Line, Window};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::kernels::conv::{Args, KERNEL, PACKED, TILE, TRANSPOSED};
use crate::lower::{Call, LowerCx, Operand, Pack};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{HostTensor, product};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conv {
    /// The window; its sizes are the spatial sizes of the weights.
    pub window: Window,
    /// Number of channel groups.
    pub group: i64,
}

/// Maximum elements of the patch matrix that are held at a time.
const PATCHES: usize = 1 << 20;

pub(crate) fn group(a: &dyn Attributes) -> OpResult<i64> {
    let group = a.int("group")?.unwrap_or(1);
    if !(1..=i64::from(i32::MAX)).contains(&group) {
        return Err(OpError::expected("attribute `group`", "1 or more", group));
    }
    Ok(group)
}

/// The window sizes: the spatial sizes of the weights. Attribute `kernel_shape` must equal them if
/// it is given.
pub(crate) fn kernel(window: &Window, w: &[Dim]) -> OpResult<Vec<i64>> {
    let sizes: Vec<i64> = w
        .iter()
        .skip(2)
        .map(|d| {
            d.as_const()
                .ok_or_else(|| OpError::expected("window size", "a constant", d))
        })
        .collect::<OpResult<_>>()?;
    if !window.kernel.is_empty() && window.kernel != sizes {
        return Err(OpError::mismatch(
            "window sizes of attribute and weights",
            format!("{:?}", window.kernel),
            format!("{sizes:?}"),
        ));
    }
    Ok(sizes)
}

/// Splits a shape into batch, channels and spatial sizes.
pub(crate) fn parts<'a>(what: &'static str, shape: &'a [Dim]) -> OpResult<(&'a Dim, &'a Dim, &'a [Dim])> {
    match shape {
        [n, c, rest @ ..] if !rest.is_empty() => Ok((n, c, rest)),
        _ => Err(OpError::expected(
            format!("rank of {what}"),
            "3 or more",
            shape.len(),
        )),
    }
}

/// Splits the shape of a tensor into batch, channels and spatial sizes.
pub(crate) fn sizes(x: &HostTensor) -> OpResult<(usize, usize, &[usize])> {
    match x.shape() {
        [n, c, rest @ ..] if !rest.is_empty() => Ok((*n, *c, rest)),
        s => Err(OpError::expected("rank", "3 or more", s.len())),
    }
}

/// The element type, which must be the same for all operands.
pub(crate) fn floats(cx: &InferCx<'_>) -> OpResult<crate::tensor::DType> {
    let dtype = cx.float(0)?.dtype;
    for f in cx.inputs.iter().flatten() {
        if f.dtype != dtype {
            return Err(OpError::mismatch("element types", dtype, f.dtype));
        }
    }
    Ok(dtype)
}

/// `y[m, ..] += bias[m]` for planes of `area` elements.
pub(crate) fn add_bias(
    bias: Option<&HostTensor>,
    channels: usize,
    area: usize,
    y: &mut [f32],
) -> OpResult<()> {
    let Some(bias) = bias else { return Ok(()) };
    let bias = bias.to_f32()?;
    if bias.len() != channels {
        return Err(OpError::mismatch(
            "channels of bias and result",
            bias.len(),
            channels,
        ));
    }
    for (plane, b) in y.chunks_exact_mut(area.max(1)).zip(bias.iter().cycle()) {
        for v in plane {
            *v += b;
        }
    }
    Ok(())
}

impl Conv {
    /// The window as rows and columns, the output channels of a group, and its input channels.
    fn lines(&self, cx: &LowerCx<'_>) -> OpResult<([Line; 2], usize, Dim)> {
        let (x, w, out) = (cx.shape(0)?, cx.shape(1)?, cx.out_fact(0)?.shape.clone());
        let ((_, _, spatial), (m, channels, _)) = (parts("the input", &x.0)?, parts("the weights", &w.0)?);
        let (_, _, windows) = parts("the result", &out.0)?;
        let kernel = kernel(&self.window, &w.0)?;
        let mut lines = self.window.plane(&kernel, spatial, windows)?;
        if lines.iter().all(Line::is_identity) {
            // The rows of such a plane can be merged into one row.
            let plane = lines[0].size.mul(&lines[1].size)?;
            lines = [
                Line::one(),
                Line {
                    size: plane.clone(),
                    out: plane,
                    ..Line::one()
                },
            ];
        }
        let group = crate::graph::op::fixed_size(&self.group.into())?.max(1);
        Ok((lines, crate::graph::op::fixed_size(m)? / group, channels.clone()))
    }

    /// Emits the kernel for any element type.
    pub(crate) fn lower_plain(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (lines, rows, channels) = self.lines(cx)?;
        emit(cx, &lines, self.group, rows, &channels, false)
    }
}

impl Op for Conv {
    fn name(&self) -> &str {
        "Conv"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let dtype = floats(cx)?;
        let (x, w) = (&cx.fact(0)?.shape.0, &cx.fact(1)?.shape.0);
        let ((n, c, spatial), (m, per_group, _)) = (parts("the input", x)?, parts("the weights", w)?);
        cx.same(
            "channels of input and of weights times groups",
            c,
            &per_group.mul(&self.group.into())?,
        )?;
        if m.exact_div(&self.group.into()).is_none() {
            return Err(OpError::expected(
                "output channels",
                format!("a multiple of {} groups", self.group),
                m,
            ));
        }
        if let Some(b) = cx.opt(2) {
            if b.shape.rank() != 1 {
                return Err(OpError::expected("rank of the bias", 1, b.shape.rank()));
            }
            cx.same("channels of bias and result", &b.shape.0[0], m)?;
        }
        let kernel = kernel(&self.window, w)?;
        let mut out = vec![n.clone(), m.clone()];
        out.extend(self.window.derive(cx, &kernel, spatial)?);
        Ok(vec![Fact::new(dtype, Shape(out))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, w) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let ((n, c, spatial), (m, per_group, _)) = (sizes(x)?, sizes(w)?);
        let kernel = kernel(&self.window, &Shape::fixed(w.shape()).0)?;
        let axes = self.window.axes(&kernel, spatial)?;
        let group = num::exact(self.group, "a number of groups")?;
        if per_group.checked_mul(group) != Some(c) || m % group != 0 {
            return Err(OpError::mismatch(
                "channels of input and weights",
                c,
                format!("{per_group} in {group} groups"),
            ));
        }
        let mut shape = vec![n, m];
        shape.extend(axes.iter().map(|a| a.out));
        let mut y = crate::graph::op::filled(&shape, 0f32)?;
        let plane = crate::graph::op::count(spatial)?;
        let [area, taps] = window::products(&axes, [|a| a.out, |a| a.kernel])?;
        let (dx, dw) = (x.to_f32()?, w.to_f32()?);
        let rows = m / group;
        if area > 0 && plane > 0 && taps > 0 && per_group > 0 && rows > 0 {
            let images = dx
                .chunks_exact(plane * per_group)
                .zip(y.chunks_exact_mut(area * rows));
            for ((x, y), w) in images.zip(dw.chunks_exact(rows * per_group * taps).cycle()) {
                if per_group == 1 {
                    for (y, w) in y.chunks_exact_mut(area).zip(w.chunks_exact(taps)) {
                        depthwise(&axes, x, w, y)?;
                    }
                } else {
                    patches(&axes, per_group, rows, x, w, y)?;
                }
            }
        }
        add_bias(inputs.get(2).copied().flatten(), m, area, &mut y)?;
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn supports_epilogue(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (lines, rows, channels) = self.lines(cx)?;
        if cx.device().runs(&crate::kernels::conv::PANELS) && cx.fact(1)?.as_const().is_some() {
            let images = parts("the input", &cx.shape(0)?.0)?.0.clone();
            return native::emit(cx, &lines, &images, self.group, rows, &channels);
        }
        let group = crate::graph::op::fixed_size(&self.group.into())?.max(1);
        if tiled::emit(cx, &lines, group, rows, &channels)? {
            return Ok(());
        }
        emit(cx, &lines, self.group, rows, &channels, false)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.convolution()
    }
}

/// The weights in tiles of `tile` of the `rows` output channels of a group, `count` tiles in all,
/// in ranges (operand, first tile, count) that a kernel can bind. A tile sums `depth` terms.
fn packed_tiles(
    cx: &mut LowerCx<'_>,
    (rows, tile, count): (usize, usize, usize),
    depth: usize,
) -> OpResult<Vec<(Operand, usize, usize)>> {
    let dtype = cx.float();
    let size = dtype.device_bytes();
    let ranges = cx.split(count, (depth.saturating_mul(tile), size), 1)?;
    let pack = |(first, count)| {
        let pack = Pack::Tiles {
            dtype,
            rows,
            tile,
            first,
            count,
        };
        Ok((cx.weight(1, pack)?, first, count))
    };
    ranges.into_iter().map(pack).collect()
}

/// Emits the convolution of operand 0 by operand 1, plus operand 2. Groups have `rows` output
/// channels and `channels` input channels.
pub(crate) fn emit(
    cx: &mut LowerCx<'_>,
    lines: &[Line; 2],
    group: i64,
    rows: usize,
    channels: &Dim,
    transposed: bool,
) -> OpResult<()> {
    let (x, w) = (cx.shape(0)?, cx.fact(1)?.clone());
    let ((n, c, _), [h, v]) = (parts("the input", &x.0)?, lines);
    let image = c.mul(&h.size)?.mul(&v.size)?;
    // Distance between consecutive results of a work-item in a row.
    let step = if transposed { v.stride } else { 1 };
    let each = v.out.ceil_div(step)?;
    let packed = w.as_const().is_some() && w.dtype.is_float() && !transposed;
    let most = if cx.device().few_registers { 4 } else { 8 };
    let tile = rows.next_power_of_two().min(most);
    let tiles = rows.div_ceil(tile);
    let groups = crate::graph::op::fixed_size(&group.into())?;
    let depth = crate::graph::op::fixed_size(channels)?.saturating_mul(crate::graph::op::fixed_size(
        &(h.kernel.saturating_mul(v.kernel)).into(),
    )?);
    // With the iterations of the loops around the innermost one.
    cx.loops("sums", &Dim::from_usize(depth.saturating_mul(3)))?;
    let dispatches = if packed {
        packed_tiles(cx, (rows, tile, tiles * groups), depth)?
    } else {
        vec![(cx.input(1)?, 0, tiles * groups)]
    };
    for (weights, first, count) in dispatches {
        let grid = h.out.mul(&each.ceil_div(RUN)?)?.mul(&step.into())?;
        let args = Args {
            x: cx.input(0)?,
            w: weights,
            bias: if cx.has(2) { Some(cx.input(2)?) } else { None },
            y: cx.output(0)?,
            in_h: h.size.clone(),
            in_w: v.size.clone(),
            out_h: h.out.clone(),
            out_w: v.out.clone(),
            channels: channels.clone(),
            rows: Dim::from_usize(rows),
            outputs: Dim::from_usize(rows * groups),
            tiles: Dim::from_usize(tiles),
            first: Dim::from_usize(first),
            parts: Dim::from_usize(count),
            image: image.clone(),
            total: n.mul(&image)?,
            pad_h: h.before.clone(),
            pad_w: v.before.clone(),
        };
        let call = Call::new(&KERNEL, ITEMS)
            .define(TILE, num::signed(tile))
            .define("RUN", RUN)
            .define_if(PACKED, packed)
            .define_if(TRANSPOSED, transposed)
            .define_if("INSIDE", v.is_identity())
            .grid(
                grid.ceil_div(i64::from(ITEMS))?,
                Dim::from_usize(count),
                n.clone(),
            );
        cx.emit(window::define(call, lines), args)?;
    }
    Ok(())
}

/// Work-items per work-group.
const ITEMS: u32 = 64;

/// Results of a row per work-item.
const RUN: i64 = 4;

/// Convolves one channel with its own weights.
fn depthwise(axes: &[Axis], x: &[f32], w: &[f32], y: &mut [f32]) -> OpResult<()> {
    let stride = axes.last().map_or(1, |a| a.stride);
    for (tap, w) in window::taps(axes).zip(w) {
        quota::check()?;
        window::walk(axes, &tap, 0..y.len(), |o, i, n| {
            let (Some(y), Some(x)) = (y.get_mut(o..o + n), x.get(i..)) else {
                return;
            };
            if stride == 1 {
                for (y, x) in y.iter_mut().zip(x) {
                    *y += w * x;
                }
            } else {
                for (y, x) in y.iter_mut().zip(x.iter().step_by(stride)) {
                    *y += w * x;
                }
            }
        });
    }
    Ok(())
}

/// Convolves one group as a matmul of its weights `[rows, channels * taps]` with a matrix of
/// patches, some windows at a time.
fn patches(axes: &[Axis], channels: usize, rows: usize, x: &[f32], w: &[f32], y: &mut [f32]) -> OpResult<()> {
    let area = y.len() / rows;
    let plane = x.len() / channels;
    let stride = axes.last().map_or(1, |a| a.stride);
    let as_it_is = axes
        .iter()
        .all(|a| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.after == 0);
    if as_it_is {
        return Ok(product::gemm(rows, area, channels, w, x, false, y)?);
    }
    let taps: Vec<Vec<usize>> = window::taps(axes).collect();
    let depth = channels * taps.len();
    let step = (PATCHES / depth).clamp(64, area.max(64)).min(area);
    let mut columns = crate::graph::op::filled(&[depth, step], 0f32)?;
    let mut part = crate::graph::op::filled(&[rows, step], 0f32)?;
    for start in (0..area).step_by(step) {
        let count = step.min(area - start);
        columns.fill(0.0);
        for (x, block) in x
            .chunks_exact(plane)
            .zip(columns.chunks_exact_mut(taps.len() * count))
        {
            for (tap, row) in taps.iter().zip(block.chunks_exact_mut(count)) {
                window::walk(axes, tap, start..start + count, |o, i, n| {
                    let (Some(row), Some(x)) = (row.get_mut(o - start..o - start + n), x.get(i..)) else {
                        return;
                    };
                    if stride == 1 {
                        if let Some(x) = x.get(..n) {
                            row.copy_from_slice(x);
                        }
                    } else {
                        for (to, x) in row.iter_mut().zip(x.iter().step_by(stride)) {
                            *to = *x;
                        }
                    }
                });
            }
        }
        product::gemm(rows, count, depth, w, &columns, false, &mut part)?;
        for (y, part) in y.chunks_exact_mut(area).zip(part.chunks_exact(count)) {
            if let Some(y) = y.get_mut(start..start + count) {
                y.copy_from_slice(part);
            }
        }
    }
    Ok(())
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(Conv {
        window: Window::import(a)?,
        group: group(a)?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Conv", 1, 3)],
    import,
    kernels: &[
        &KERNEL.kernel,
        &crate::kernels::conv::TILED.kernel,
        &crate::kernels::conv::PANELS.kernel,
        &crate::kernels::conv::DEPTHWISE.kernel,
    ],
    cases,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::window::AutoPad;
    use crate::shape::Constraints;
    use crate::tensor::DType;

    /// The definition, one element at a time.
    fn direct(op: &Conv, x: &HostTensor, w: &HostTensor) -> Vec<f32> {
        let (dx, dw) = (x.to_f32().unwrap(), w.to_f32().unwrap());
        let ((n, _, spatial), (m, per_group, k)) = (sizes(x).unwrap(), sizes(w).unwrap());
        let kernel: Vec<i64> = k.iter().map(|v| i64::try_from(*v).unwrap()).collect();
        let axes = op.window.axes(&kernel, spatial).unwrap();
        let group = usize::try_from(op.group).unwrap();
        let flat =
            |index: &[usize], sizes: &[usize]| index.iter().zip(sizes).fold(0, |at, (i, s)| at * s + i);
        let outs: Vec<usize> = axes.iter().map(|a| a.out).collect();
        let mut y = Vec::new();
        for image in 0..n {
            for row in 0..m {
                for o in window::indices(&outs) {
                    let mut sum = 0f64;
                    for c in 0..per_group {
                        let channel = row / (m / group) * per_group + c;
                        for t in window::taps(&axes) {
                            let at: Option<Vec<usize>> = axes
                                .iter()
                                .zip(o.iter().zip(&t))
                                .map(|(a, (o, t))| {
                                    (o * a.stride + t * a.dilation)
                                        .checked_sub(a.before)
                                        .filter(|i| *i < a.size)
                                })
                                .collect();
                            if let Some(at) = at {
                                let xi = (image * per_group * group + channel)
                                    * spatial.iter().product::<usize>()
                                    + flat(&at, spatial);
                                let wi = (row * per_group + c) * k.iter().product::<usize>() + flat(&t, k);
                                sum += f64::from(dx[xi]) * f64::from(dw[wi]);
                            }
                        }
                    }
                    #[expect(clippy::cast_possible_truncation, reason = "a test")]
                    y.push(sum as f32);
                }
            }
        }
        y
    }

    #[test]
    fn products_of_patches_are_convolutions() {
        for case in cases().iter().filter(|c| c.inputs.len() == 2) {
            let tensors: Vec<HostTensor> = (1..).zip(&case.inputs).map(|(s, i)| i.make(s).unwrap()).collect();
            let op = case.op.downcast::<Conv>().unwrap();
            let y = case.op.eval(&[Some(&tensors[0]), Some(&tensors[1])]).unwrap();
            let (y, want) = (
                y[0].to_f32().unwrap().into_owned(),
                direct(op, &tensors[0], &tensors[1]),
            );
            assert_eq!(y.len(), want.len());
            // Both add in f32, in different orders: longer sums have the slack of their case.
            let close = |(a, b): (&f32, &f32)| f64::from((a - b).abs()) < 1e-5 * case.slack;
            assert!(y.iter().zip(&want).all(close), "{}", case.name());
        }
    }

    #[test]
    fn symbolic_sizes() {
        let fact = |t: &str| {
            Fact::new(
                DType::F32,
                Shape(t.split(',').map(|d| Dim::parse(d).unwrap()).collect()),
            )
        };
        let (x, w, constraints) = (fact("n,3,h,w"), fact("8,3,3,3"), Constraints::default());
        let inputs = [Some(&x), Some(&w)];
        let op = |window| Conv { window, group: 1 };
        let cx = InferCx::new(&inputs, &constraints);
        let half = op(Window {
            pads: vec![1; 4],
            strides: vec![2, 2],
            ..Window::new(&[])
        });
        assert_eq!(
            half.infer(&cx).unwrap()[0].shape,
            fact("n,8,(h-1)//2+1,(w-1)//2+1").shape
        );
        assert_eq!(cx.finish().1.len(), 2, "each size must leave room for a window");
        let cx = InferCx::new(&inputs, &constraints);
        let same = op(Window {
            auto_pad: AutoPad::SameUpper,
            strides: vec![2, 2],
            ..Window::new(&[])
        });
        assert_eq!(
            same.infer(&cx).unwrap()[0].shape,
            fact("n,8,(h+1)//2,(w+1)//2").shape
        );
        assert!(
            Conv {
                window: Window::new(&[5, 5]),
                group: 1
            }
            .infer(&cx)
            .is_err()
        );
        assert!(
            Conv {
                window: Window::new(&[]),
                group: 2
            }
            .infer(&cx)
            .is_err()
        );
    }
}
