//! Sampling grid of affine transforms. ONNX `AffineGrid` from opset 20.
//!
//! Operands: matrices `[n, r, r + 1]` and the sizes of an image, `(n, c, sizes..)` with `r` of
//! them, 2 or 3. The result is `[n, sizes.., r]`: coordinates, the last axis first.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{
    Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, count, onnx, operand, room, strides, to_sizes,
};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineGrid {
    /// -1 and 1 are the centers of the outermost elements, not their borders.
    pub align_corners: bool,
}

/// Batch and spatial sizes of the image.
fn parts<T: Clone>(sizes: &[T]) -> OpResult<(T, Vec<T>)> {
    match sizes {
        [n, _, spatial @ ..] if matches!(spatial.len(), 2 | 3) => Ok((n.clone(), spatial.to_vec())),
        _ => Err(OpError::expected("number of image sizes", "4 or 5", sizes.len())),
    }
}

impl Op for AffineGrid {
    fn name(&self) -> &str {
        "AffineGrid"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let theta = cx.fact(0)?;
        if !theta.dtype.is_float() {
            return Err(OpError::expected("element type", "a float", theta.dtype));
        }
        let (n, spatial) = parts(&cx.sizes(1)?)?;
        let [batch, rows, cols] = theta.shape.0.as_slice() else {
            return Err(OpError::expected("rank", 3, theta));
        };
        let r = Dim::from_usize(spatial.len());
        let n = cx.same("batches of matrices and image", batch, &n)?;
        cx.same("matrix rows and image axes", rows, &r)?;
        cx.same("matrix columns and image axes + 1", cols, &r.add(&1.into())?)?;
        let shape = std::iter::once(n).chain(spatial).chain([r]).collect();
        Ok(vec![Fact::new(theta.dtype, Shape(shape))])
    }

    #[expect(clippy::cast_precision_loss, reason = "positions in an image")]
    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let theta = operand(inputs, 0)?;
        let (n, spatial) = parts(&to_sizes(operand(inputs, 1)?)?)?;
        let r = spatial.len();
        if theta.shape() != [n, r, r + 1] {
            return Err(OpError::expected(
                "matrices",
                format!("{:?}", [n, r, r + 1]),
                format!("{theta:?}"),
            ));
        }
        let coordinate = |i: usize, size: usize| match size {
            1 => 0.0,
            size if self.align_corners => 2.0 * i as f64 / (size - 1) as f64 - 1.0,
            size => (2 * i + 1) as f64 / size as f64 - 1.0,
        };
        let shape: Vec<usize> = [n]
            .into_iter()
            .chain(spatial.iter().copied())
            .chain([r])
            .collect();
        let (steps, area) = (strides(&spatial), count(&spatial)?);
        let mut y: Vec<f64> = room(&shape)?;
        for matrix in theta.to_f64()?.chunks_exact(r * (r + 1)) {
            for place in 0..area {
                let axes = steps.iter().zip(&spatial).rev();
                let mut from: Vec<f64> = axes.map(|(s, n)| coordinate(place / s % n, *n)).collect();
                from.push(1.0);
                for row in matrix.chunks_exact(r + 1) {
                    y.push(row.iter().zip(&from).map(|(a, b)| a * b).sum());
                }
            }
        }
        Ok(vec![HostTensor::from_f64s(theta.dtype(), &shape, &y)?])
    }

    fn reads(&self, input: usize) -> bool {
        input == 0
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(AffineGrid {
        align_corners: a.int("align_corners")?.unwrap_or(0) != 0,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("AffineGrid", 20, 2)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |align_corners, theta: &[usize], sizes: &[i64]| {
        let sizes = input(&[sizes.len()]).values(sizes).constant();
        Case::new(AffineGrid { align_corners }, vec![input(theta), sizes]).host_only("no kernel")
    };
    vec![
        case(false, &[2, 2, 3], &[2, 3, 4, 5]),
        case(true, &[1, 3, 4], &[1, 2, 3, 1, 5]),
    ]
}
