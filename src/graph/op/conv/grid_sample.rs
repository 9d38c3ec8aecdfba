//! Sampling at given positions: `GridSample` from ONNX opset 16 (from 20: any number of spatial
//! axes, and modes `linear` and `cubic` for `bilinear` and `bicubic`).
//!
//! Operands: `x [n, c, sizes..]` and a grid `[n, places.., axes]` of coordinates in -1 to 1, last
//! axis first; the result is `[n, c, places..]`.

use crate::graph::op::case::{Case, input};
use crate::graph::op::conv::{parts, sizes};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, onnx, operand, strides,
};
use crate::kernels::grid_sample::{Args, BORDER, CORNERS, KERNEL, REFLECTION, TAPS};
use crate::lower::{Call, LowerCx};
use crate::num;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;
pub use crate::tensor::resample::Padding;
use crate::tensor::resample::{Sampler, cubic};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Mode {
    Nearest,
    Linear,
    Cubic,
}

impl Mode {
    /// Neighbours along an axis.
    const fn taps(self) -> usize {
        match self {
            Self::Nearest => 1,
            Self::Linear => 2,
            Self::Cubic => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSample {
    pub mode: Mode,
    /// Values outside the input.
    pub padding: Padding,
    /// -1 and 1 are the centers of the outermost elements, not their borders.
    pub align_corners: bool,
}

/// The parameter of cubic interpolation.
const CUBIC: f64 = -0.75;

impl Op for GridSample {
    fn name(&self) -> &str {
        "GridSample"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, grid) = (cx.fact(0)?, cx.fact(1)?);
        let dtype = x.dtype;
        if !dtype.is_float() || !grid.dtype.is_float() {
            return Err(OpError::expected(
                "element types",
                "f32 or f16",
                format!("{x} and {grid}"),
            ));
        }
        let (n, c, spatial) = parts("the input", &x.shape.0)?;
        let [n_grid, places @ .., axes] = grid.shape.0.as_slice() else {
            return Err(OpError::expected(
                "rank of the grid",
                x.shape.rank(),
                grid.shape.rank(),
            ));
        };
        // The number of neighbours grows exponentially with the axes.
        if spatial.len() > 3 {
            return Err(OpError::Unsupported(format!(
                "samples along {} axes (limit 3)",
                spatial.len()
            )));
        }
        if places.len() != spatial.len() {
            return Err(OpError::mismatch(
                "ranks of input and grid",
                x.shape.rank(),
                grid.shape.rank(),
            ));
        }
        for size in spatial {
            cx.require(size.sub(&1.into())?, "a size to sample from minus 1")?;
        }
        cx.same("batches of input and grid", n, n_grid)?;
        cx.same(
            "spatial axes of the input and coordinates of the grid",
            &Dim::from_usize(spatial.len()),
            axes,
        )?;
        let out = [n.clone(), c.clone()]
            .into_iter()
            .chain(places.iter().cloned())
            .collect();
        Ok(vec![Fact::new(dtype, Shape(out))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, grid) = (operand(inputs, 0)?, operand(inputs, 1)?);
        let (n, c, spatial) = sizes(x)?;
        let [n_grid, places @ .., axes] = grid.shape() else {
            return Err(OpError::expected(
                "rank of the grid",
                x.shape().len(),
                grid.shape().len(),
            ));
        };
        if *n_grid != n || spatial.len() > 3 || places.len() != spatial.len() || *axes != spatial.len() {
            return Err(OpError::mismatch(
                "input and grid",
                format!("{x:?}"),
                format!("{grid:?}"),
            ));
        }
        let shape: Vec<usize> = [n, c].into_iter().chain(places.iter().copied()).collect();
        let mut y = filled(&shape, 0f32)?;
        let (plane, area) = (
            crate::graph::op::count(spatial)?,
            crate::graph::op::count(places)?,
        );
        if plane == 0 || area == 0 || c == 0 {
            return if y.is_empty() {
                Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
            } else {
                Err(OpError::expected(
                    "sizes to sample from",
                    "1 or more",
                    format!("{spatial:?}"),
                ))
            };
        }
        let (data, grid) = (x.to_f32()?, grid.to_f32()?);
        let steps = strides(spatial);
        let images = data.chunks_exact(c * plane).zip(y.chunks_exact_mut(c * area));
        for ((x, y), grid) in images.zip(grid.chunks_exact(area * spatial.len())) {
            for (place, at) in grid.chunks_exact(spatial.len()).enumerate() {
                // Offset and weight of every neighbour.
                let mut taps = vec![(0usize, 1f32)];
                for ((v, size), step) in at.iter().rev().zip(spatial).zip(&steps) {
                    let along = self.taps(*v, *size);
                    taps = taps
                        .iter()
                        .flat_map(|(at, w)| along.clone().map(move |(i, u)| (at + i * step, w * u)))
                        .collect();
                }
                for (x, y) in x.chunks_exact(plane).zip(y.chunks_exact_mut(area)) {
                    let sum = taps.iter().map(|(i, w)| x.get(*i).map_or(0.0, |v| v * w)).sum();
                    if let Some(y) = y.get_mut(place) {
                        *y = sum;
                    }
                }
            }
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (x, out) = (cx.shape(0)?, cx.out_fact(0)?.shape.clone());
        let ([_, c, in_h, in_w], [_, _, h, w]) = (x.0.as_slice(), out.0.as_slice()) else {
            return Err(OpError::NoKernel(format!(
                "samples of {x}; kernels support two spatial axes"
            )));
        };
        let count = out.count()?;
        let call = Call::new(&KERNEL, 64)
            .define(TAPS, num::signed(self.mode.taps()))
            .define_if(BORDER, self.padding == Padding::Border)
            .define_if(REFLECTION, self.padding == Padding::Reflection)
            .define_if(CORNERS, self.align_corners)
            .grid(count.ceil_div(2 * 64)?, 1, 1);
        let args = Args {
            x: cx.input(0)?,
            grid: cx.input(1)?,
            y: cx.output(0)?,
            count,
            places: h.mul(w)?,
            channels: c.clone(),
            in_h: in_h.clone(),
            in_w: in_w.clone(),
        };
        cx.emit(call, args)
    }
}

impl GridSample {
    /// Neighbours along an axis of `size` elements for the coordinate `v`, with their weights.
    fn taps(&self, v: f32, size: usize) -> impl Iterator<Item = (usize, f32)> + Clone {
        let sampler = Sampler {
            taps: self.mode.taps(),
            padding: self.padding,
            corners: self.align_corners,
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
        let weight = |x: f32, low: f32, i: f32| cubic(CUBIC, f64::from((x - low - i).abs())) as f32;
        let all = sampler.neighbours(v, size, weight).into_iter();
        all.take(sampler.taps).filter_map(|(i, w)| Some((i?, w)))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let mode = match a.string("mode")?.as_deref() {
        None | Some("linear" | "bilinear") => Mode::Linear,
        Some("nearest") => Mode::Nearest,
        Some("cubic" | "bicubic") => Mode::Cubic,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `mode`",
                "nearest, linear or cubic",
                other,
            ));
        }
    };
    let padding = match a.string("padding_mode")?.as_deref() {
        None | Some("zeros") => Padding::Zeros,
        Some("border") => Padding::Border,
        Some("reflection") => Padding::Reflection,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `padding_mode`",
                "zeros, border or reflection",
                other,
            ));
        }
    };
    Ok(Box::new(GridSample {
        mode,
        padding,
        align_corners: a.int("align_corners")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("GridSample", 16, 2)],
    import,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |mode, padding, align_corners| {
        let inputs = vec![input(&[2, 3, 5, 4]), input(&[2, 6, 7, 2]).range(-1.5, 1.5)];
        Case::new(
            GridSample {
                mode,
                padding,
                align_corners,
            },
            inputs,
        )
    };
    let volume = vec![
        input(&[1, 2, 3, 4, 5]),
        input(&[1, 2, 3, 2, 3]).range(-1.25, 1.25),
    ];
    let op = GridSample {
        mode: Mode::Linear,
        padding: Padding::Border,
        align_corners: true,
    };
    vec![
        case(Mode::Linear, Padding::Zeros, false),
        case(Mode::Nearest, Padding::Border, true),
        case(Mode::Cubic, Padding::Reflection, false),
        case(Mode::Cubic, Padding::Zeros, true),
        case(Mode::Linear, Padding::Reflection, true),
        case(Mode::Nearest, Padding::Zeros, false),
        Case::new(op, volume).host_only("kernels have two spatial axes"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_axes_are_refused() {
        let op = GridSample {
            mode: Mode::Cubic,
            padding: Padding::Zeros,
            align_corners: false,
        };
        let run = |axes: usize| {
            let x = HostTensor::zeros(crate::tensor::DType::F32, &vec![1; axes + 2]).unwrap();
            let shape = [vec![1; axes + 1], vec![axes]].concat();
            let grid = HostTensor::zeros(crate::tensor::DType::F32, &shape).unwrap();
            op.eval(&[Some(&x), Some(&grid)])
        };
        assert!(run(3).is_ok() && run(4).is_err());
    }

    #[test]
    fn the_identity_grid_gives_the_image() {
        let x = input(&[1, 2, 3, 4]).make(1).unwrap();
        let line = |n: u8| (0..n).map(move |i| 2.0 * f32::from(i) / f32::from(n - 1) - 1.0);
        let grid: Vec<f32> = line(3).flat_map(|y| line(4).flat_map(move |x| [x, y])).collect();
        let grid = HostTensor::from_f32(&[1, 3, 4, 2], &grid).unwrap();
        for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
            let op = GridSample {
                mode,
                padding: Padding::Zeros,
                align_corners: true,
            };
            let y = op.eval(&[Some(&x), Some(&grid)]).unwrap().remove(0);
            let same = y
                .to_f32()
                .unwrap()
                .iter()
                .zip(x.to_f32().unwrap().iter())
                .all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(same, "{mode:?}");
        }
    }
}
