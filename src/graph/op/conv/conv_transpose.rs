//! Transposed convolution: the gradient of [`Conv`](crate::graph::op::conv::Conv) with respect to
//! its input.
//!
//! ONNX `ConvTranspose` from opset 1 (11 and 22 change only documentation and types):
//! `x [n, c, ..]`, `w [c, m / group, kernel..]`, optional `bias [m]`. A result size is
//! `stride * (size - 1) + output_padding + extent - pads`, or the value of `output_shape`, or, with
//! padding SAME, `stride * size`. In the last two cases the padding is computed from the size.

use crate::graph::op::case::{Case, input};
use crate::graph::op::conv::{self, add_bias, floats, group, kernel, parts, sizes};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::window::{self, AutoPad, Axis, Window, list};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, onnx, operand};
use crate::lower::LowerCx;
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{HostTensor, product};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvTranspose {
    /// The window; its sizes are the spatial sizes of the weights.
    pub window: Window,
    /// Number of channel groups.
    pub group: i64,
    /// Additional elements at the end of each axis; empty for none.
    pub output_padding: Vec<i64>,
    /// Spatial sizes of the result; empty to derive them from the input.
    pub output_shape: Vec<i64>,
}

impl ConvTranspose {
    /// Size of the result along axis `i`, and the padding before and after.
    fn axis(&self, i: usize, kernel: &[i64], size: &Dim) -> OpResult<(Dim, Dim, Dim)> {
        let w = &self.window;
        let extra = self.output_padding.get(i).copied().unwrap_or(0);
        let extent = w.extent(i, kernel.get(i).copied().unwrap_or(1));
        let stride = Dim::from(w.stride(i));
        let full = size.sub(&1.into())?.mul(&stride)?.add(&(extra + extent).into())?;
        let same = matches!(w.auto_pad, AutoPad::SameUpper | AutoPad::SameLower);
        let wanted = match self.output_shape.get(i) {
            Some(v) => Some(Dim::from(*v)),
            None if same => Some(size.mul(&stride)?),
            None => None,
        };
        if let Some(out) = wanted {
            let total = full.sub(&out)?.maximum(&0.into())?;
            let small = total.floor_div(2)?;
            let large = total.sub(&small)?;
            return Ok(match w.auto_pad {
                AutoPad::SameUpper => (out, small, large),
                _ => (out, large, small),
            });
        }
        let (before, after) = w.explicit(i, kernel.len());
        Ok((full.sub(&(before + after).into())?, before.into(), after.into()))
    }

    /// The same as a convolution with flipped weights of the input with zeros inserted: the
    /// distances between its elements, and the padding of the convolution. There is one element
    /// more than needed behind the last ones of each axis. `None` if the padding would be negative.
    pub fn as_convolution(&self, kernel: &[i64], sizes: &[i64]) -> Option<(Vec<i64>, Vec<i64>)> {
        self.check(kernel, sizes.len()).ok()?;
        let (mut steps, mut before, mut after) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (size, k)) in sizes.iter().zip(kernel).enumerate() {
            let (out, start, _) = self.axis(i, kernel, &Dim::from(*size)).ok()?;
            let reach = self.window.extent(i, *k) - 1;
            let stride = self.window.stride(i);
            let first = reach - start.as_const()?;
            steps.push(stride);
            before.push(first);
            after.push(out.as_const()? + reach - size.checked_mul(stride)? - first);
        }
        before.extend(after);
        before.iter().all(|p| *p >= 0).then_some((steps, before))
    }

    fn check(&self, kernel: &[i64], rank: usize) -> OpResult<()> {
        self.window.check(kernel, rank)?;
        for (what, list) in [
            (
                "numbers of output paddings and spatial axes",
                &self.output_padding,
            ),
            ("numbers of output sizes and spatial axes", &self.output_shape),
        ] {
            if !list.is_empty() && list.len() != rank {
                return Err(OpError::mismatch(what, list.len(), rank));
            }
        }
        Ok(())
    }
}

impl Op for ConvTranspose {
    fn name(&self) -> &str {
        "ConvTranspose"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let dtype = floats(cx)?;
        let (x, w) = (&cx.fact(0)?.shape.0, &cx.fact(1)?.shape.0);
        let ((n, c, spatial), (c_w, per_group, _)) = (parts("the input", x)?, parts("the weights", w)?);
        cx.same("channels of input and weights", c, c_w)?;
        if c_w.exact_div(&self.group.into()).is_none() {
            return Err(OpError::expected(
                "input channels",
                format!("a multiple of {} groups", self.group),
                c_w,
            ));
        }
        let m = per_group.mul(&self.group.into())?;
        if let Some(b) = cx.opt(2) {
            if b.shape.rank() != 1 {
                return Err(OpError::expected("rank of the bias", 1, b.shape.rank()));
            }
            cx.same("channels of bias and result", &b.shape.0[0], &m)?;
        }
        let kernel = kernel(&self.window, w)?;
        self.check(&kernel, spatial.len())?;
        let mut out = vec![n.clone(), m];
        for (i, size) in spatial.iter().enumerate() {
            let (size, ..) = self.axis(i, &kernel, size)?;
            cx.require(size.clone(), "result size of a transposed convolution")?;
            out.push(size);
        }
        Ok(vec![Fact::new(dtype, Shape(out))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, w) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let ((n, c, spatial), (c_w, per_group, _)) = (sizes(x)?, sizes(w)?);
        let kernel = kernel(&self.window, &Shape::fixed(w.shape()).0)?;
        self.check(&kernel, spatial.len())?;
        let group = num::exact(self.group, "a number of groups")?;
        if c != c_w || c % group != 0 {
            return Err(OpError::mismatch("channels of input and weights", c, c_w));
        }
        let mut axes = Vec::new();
        for (i, (size, k)) in spatial.iter().zip(&kernel).enumerate() {
            let (out, before, after) = self.axis(i, &kernel, &Dim::from_usize(*size))?;
            // Walks the convolution from the result to the input.
            axes.push(Axis {
                size: crate::graph::op::fixed_size(&out)?,
                out: *size,
                kernel: num::exact(*k, "a window size")?,
                stride: num::exact(self.window.stride(i), "a stride")?,
                dilation: num::exact(self.window.dilation(i), "a dilation")?,
                before: crate::graph::op::fixed_size(&before)?,
                after: crate::graph::op::fixed_size(&after)?,
            });
        }
        let m = per_group.checked_mul(group).ok_or_else(|| {
            OpError::expected(
                "channels",
                "a number whose product with `group` does not overflow",
                per_group,
            )
        })?;
        let mut shape = vec![n, m];
        shape.extend(axes.iter().map(|a| a.size));
        let mut y = crate::graph::op::filled(&shape, 0f32)?;
        let plane = crate::graph::op::count(spatial)?;
        let [area, taps] = window::products(&axes, [|a| a.size, |a| a.kernel])?;
        let (dx, dw) = (x.to_f32()?, w.to_f32()?);
        let (channels, columns) = (c / group, per_group.saturating_mul(taps));
        let stride = axes.last().map_or(1, |a| a.stride);
        if plane > 0 && area > 0 && channels > 0 && columns > 0 {
            let taps: Vec<Vec<usize>> = window::taps(&axes).collect();
            let transposed: Vec<f32> = dw
                .chunks_exact(channels * columns)
                .flat_map(|w| transposed(w, channels, columns))
                .collect();
            let mut spread = crate::graph::op::filled(&[columns, plane], 0f32)?;
            let images = dx
                .chunks_exact(plane * channels)
                .zip(y.chunks_exact_mut(area * per_group));
            for ((x, y), w) in images.zip(transposed.chunks_exact(columns * channels).cycle()) {
                product::gemm(columns, plane, channels, w, x, false, &mut spread)?;
                for (y, spread) in y
                    .chunks_exact_mut(area)
                    .zip(spread.chunks_exact(plane * taps.len()))
                {
                    for (tap, v) in taps.iter().zip(spread.chunks_exact(plane)) {
                        window::walk(&axes, tap, 0..plane, |from, to, n| {
                            let (Some(v), Some(y)) = (v.get(from..from + n), y.get_mut(to..)) else {
                                return;
                            };
                            for (v, y) in v.iter().zip(y.iter_mut().step_by(stride)) {
                                *y += v;
                            }
                        });
                    }
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
        let (x, w, out) = (cx.shape(0)?, cx.shape(1)?, cx.out_fact(0)?.shape.clone());
        let ((_, _, spatial), (c, per_group, _)) = (parts("the input", &x.0)?, parts("the weights", &w.0)?);
        let (_, _, sizes) = parts("the result", &out.0)?;
        let kernel = kernel(&self.window, &w.0)?;
        let mut lines = self.window.plane(&kernel, spatial, sizes)?;
        let first = 2usize.saturating_sub(spatial.len());
        for (i, (line, size)) in lines.iter_mut().skip(first).zip(spatial).enumerate() {
            (_, line.before, line.after) = self.axis(i, &kernel, size)?;
        }
        let group = Dim::from(self.group);
        let channels = c.exact_div(&group);
        let channels = channels
            .ok_or_else(|| OpError::expected("input channels", format!("a multiple of {group} groups"), c))?;
        conv::emit(
            cx,
            &lines,
            self.group,
            crate::graph::op::fixed_size(per_group)?,
            &channels,
            true,
        )
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let products = sizes.input_elements(0).saturating_mul(2);
        products.saturating_mul(crate::graph::op::sizes::elements(sizes.taps()))
    }
}

/// `x [rows, cols]` as `[cols, rows]`.
pub(crate) fn transposed(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols)
        .flat_map(|c| (0..rows).map(move |r| r * cols + c))
        .filter_map(|i| x.get(i).copied())
        .collect()
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(ConvTranspose {
        window: Window::import(a)?,
        group: group(a)?,
        output_padding: list(a, "output_padding", 0)?,
        output_shape: list(a, "output_shape", 0)?,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("ConvTranspose", 1, 3)],
    import,
    kernels: &[&crate::kernels::conv::KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |op, x: &[usize], w: &[usize]| Case::new(op, vec![input(x), input(w)]);
    let op = |group, window| ConvTranspose {
        window,
        group,
        output_padding: Vec::new(),
        output_shape: Vec::new(),
    };
    let twice = || Window {
        strides: vec![2, 2],
        ..Window::new(&[])
    };
    let same = |auto_pad| Window { auto_pad, ..twice() };
    vec![
        case(op(1, twice()), &[2, 3, 5, 4], &[3, 4, 2, 2]),
        case(
            op(
                2,
                Window {
                    pads: vec![1, 0, 2, 1],
                    dilations: vec![2, 1],
                    ..twice()
                },
            ),
            &[1, 4, 5, 4],
            &[4, 3, 3, 3],
        ),
        case(
            ConvTranspose {
                output_padding: vec![1, 0],
                ..op(1, twice())
            },
            &[1, 2, 3, 5],
            &[2, 1, 3, 3],
        ),
        case(
            ConvTranspose {
                output_shape: vec![10, 8],
                ..op(
                    1,
                    Window {
                        strides: vec![3, 2],
                        ..twice()
                    },
                )
            },
            &[1, 1, 3, 3],
            &[1, 2, 3, 3],
        ),
        case(op(1, same(AutoPad::SameUpper)), &[1, 2, 3, 4], &[2, 3, 3, 3]),
        case(op(1, same(AutoPad::SameLower)), &[1, 2, 3, 4], &[2, 3, 3, 3]),
        case(op(1, Window::new(&[4])), &[1, 2, 6], &[2, 3, 4]),
        case(op(1, twice()), &[1, 3, 3, 37], &[3, 9, 2, 2]),
        Case::new(
            op(
                1,
                Window {
                    pads: vec![1, 1, 1, 1],
                    ..twice()
                },
            ),
            vec![
                input(&[1, 5, 1, 4]),
                input(&[5, 2, 4, 4]).constant(),
                input(&[2]).constant(),
            ],
        ),
        case(op(1, Window::new(&[2, 2, 2])), &[1, 1, 2, 2, 2], &[1, 1, 2, 2, 2])
            .host_only("kernels have two spatial axes"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::conv::Conv;

    /// `<conv(y), x> = <y, conv_transpose(x)>` for any y and x of fitting shapes.
    #[test]
    fn is_the_adjoint_of_the_convolution() {
        let window = Window {
            strides: vec![2, 3],
            pads: vec![1, 0, 0, 2],
            dilations: vec![1, 2],
            ..Window::new(&[])
        };
        let make = |shape: &[usize], seed| input(shape).make(seed).unwrap();
        let (y, w) = (make(&[1, 4, 9, 10], 1), make(&[6, 2, 3, 2], 2));
        let conv = Conv {
            window: window.clone(),
            group: 2,
        };
        let x = conv.eval(&[Some(&y), Some(&w)]).unwrap().remove(0);
        let v = make(x.shape(), 3);
        let back = ConvTranspose {
            window,
            group: 2,
            output_padding: vec![0, 0],
            output_shape: Vec::new(),
        };
        let z = back.eval(&[Some(&v), Some(&w)]).unwrap().remove(0);
        // What no window met is missing at the end of the result.
        let (dy, dz) = (y.to_f32().unwrap(), z.to_f32().unwrap());
        let width = z.shape()[3];
        let inner: f32 = (0..4)
            .flat_map(|c| (0..z.shape()[2]).flat_map(move |h| (0..width).map(move |w| (c, h, w))))
            .map(|(c, h, w)| dy[(c * 9 + h) * 10 + w] * dz[(c * z.shape()[2] + h) * width + w])
            .sum();
        let outer: f32 = x
            .to_f32()
            .unwrap()
            .iter()
            .zip(v.to_f32().unwrap().iter())
            .map(|(a, b)| a * b)
            .sum();
        assert!((inner - outer).abs() < 1e-4, "{inner} and {outer}");
    }
}
