//! Pools regions of images by mean or maximum to one size: ONNX `RoiAlign` from opset 10 (16:
//! `half_pixel`, the default since).
//!
//! Operands: `x [n, c, h, w]`, regions `[r, 4]` as `x1, y1, x2, y2`, and the image index of each
//! region `[r]`. The result is `[r, c, output_height, output_width]`.

use crate::graph::op::case::{Case, input};
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, filled, onnx, operand};
use crate::num::{self, max_nan};
use crate::quota;
use crate::shape::{Fact, Shape};
use crate::tensor::HostTensor;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlign {
    /// Take the maximum of the samples of a bin instead of their mean.
    pub max: bool,
    /// Height and width of the result.
    pub size: (i64, i64),
    /// Samples along each axis of a bin; 0 for one per element.
    pub samples: i64,
    /// Scale from the regions' coordinates to the operand's.
    pub scale: f32,
    /// Coordinates refer to centers of elements, shifted by half an element.
    pub half_pixel: bool,
}

impl Op for RoiAlign {
    fn name(&self) -> &str {
        "RoiAlign"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (x, regions, images) = (cx.fact(0)?, cx.fact(1)?, cx.fact(2)?);
        if !x.dtype.is_float() || !regions.dtype.is_float() || !images.dtype.is_int() {
            return Err(OpError::expected(
                "element types",
                "floats, floats and integers",
                format!("{x}, {regions}, {images}"),
            ));
        }
        let ([_, c, ..], [r, four], [r_images]) = (
            x.shape.0.as_slice(),
            regions.shape.0.as_slice(),
            images.shape.0.as_slice(),
        ) else {
            return Err(OpError::expected(
                "ranks",
                "4, 2 and 1",
                format!("{x}, {regions}, {images}"),
            ));
        };
        if x.shape.rank() != 4 || !four.is(4) {
            return Err(OpError::expected(
                "operands",
                "[n, c, h, w] and [regions, 4]",
                format!("{x} and {regions}"),
            ));
        }
        cx.same("numbers of regions", r, r_images)?;
        Ok(vec![Fact::new(
            x.dtype,
            Shape(vec![r.clone(), c.clone(), self.size.0.into(), self.size.1.into()]),
        )])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let (x, regions, images) = (
            operand(inputs, 0)?,
            operand(inputs, 1)?,
            operand(inputs, 2)?.to_i64()?,
        );
        let (&[n, c, h, w], &[r, 4]) = (x.shape(), regions.shape()) else {
            return Err(OpError::expected(
                "operands",
                "[n, c, h, w] and [regions, 4]",
                format!("{x:?} and {regions:?}"),
            ));
        };
        let to = |v: i64| num::exact(v, "a size of a region");
        let shape = [r, c, to(self.size.0)?, to(self.size.1)?];
        let mut y = filled(&shape, 0f32)?;
        let (data, list) = (x.to_f32()?, regions.to_f32()?);
        let area = shape[2] * shape[3];
        if area * c * h * w > 0 {
            for ((region, image), y) in list
                .chunks_exact(4)
                .zip(&images)
                .zip(y.chunks_exact_mut(c * area))
            {
                let image = usize::try_from(*image).ok().filter(|i| *i < n);
                let image = image.ok_or_else(|| {
                    OpError::expected(
                        "image of a region",
                        format!("0 or more and below {n}"),
                        format!("{images:?}"),
                    )
                })?;
                let planes = num::part(&data, image * c * h * w..)?;
                let &[x1, y1, x2, y2] = region else { continue };
                let rows = self.bins(y1, y2, shape[2], h)?;
                let columns = self.bins(x1, x2, shape[3], w)?;
                for (plane, y) in planes.chunks_exact(h * w).zip(y.chunks_exact_mut(area)) {
                    for (row, y) in rows.iter().zip(y.chunks_exact_mut(shape[3])) {
                        for (column, y) in columns.iter().zip(y) {
                            *y = self.pool(row, column, plane, w)?;
                        }
                    }
                }
            }
        } else if !y.is_empty() {
            return Err(OpError::expected(
                "sizes to sample from",
                "1 or more",
                format!("{x:?}"),
            ));
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }
}

/// A sample along one axis: two neighbours with their weights; `None` if it is outside.
type Sample = Option<[(usize, f32); 2]>;

impl RoiAlign {
    /// The samples of each bin along one axis of `size` elements.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positions in an image"
    )]
    fn bins(&self, from: f32, to: f32, bins: usize, size: usize) -> OpResult<Vec<Vec<Sample>>> {
        let shift = if self.half_pixel { 0.5 } else { 0.0 };
        let start = from * self.scale - shift;
        let mut length = to * self.scale - shift - start;
        if !self.half_pixel {
            length = length.max(1.0);
        }
        let bin = length / bins as f32;
        let samples = if self.samples > 0 {
            self.samples as usize
        } else {
            bin.ceil().max(0.0) as usize
        };
        if !(start.is_finite() && length.is_finite()) || samples > size.saturating_mul(64).max(1 << 16) {
            return Err(OpError::expected(
                "region",
                "near the image",
                format!("{from} to {to}"),
            ));
        }
        quota::admit(bins.saturating_mul(samples).saturating_mul(size_of::<Sample>()))?;
        let last = size as f32 - 1.0;
        Ok((0..bins)
            .map(|b| {
                (0..samples)
                    .map(|s| {
                        let at = start + b as f32 * bin + (s as f32 + 0.5) * bin / samples as f32;
                        if at < -1.0 || at > size as f32 {
                            return None;
                        }
                        let at = at.clamp(0.0, last);
                        let low = at.floor();
                        let high = (low + 1.0).min(last);
                        Some([(low as usize, 1.0 - (at - low)), (high as usize, at - low)])
                    })
                    .collect()
            })
            .collect())
    }

    fn pool(&self, rows: &[Sample], columns: &[Sample], plane: &[f32], width: usize) -> OpResult<f32> {
        let (mut sum, mut most) = (0f64, f32::NEG_INFINITY);
        for row in rows {
            quota::check()?;
            for column in columns {
                let mut parts = [0f32; 4];
                if let (Some(row), Some(column)) = (row, column) {
                    let pairs = row.iter().flat_map(|r| column.iter().map(move |c| (r, c)));
                    for (part, ((r, u), (c, v))) in parts.iter_mut().zip(pairs) {
                        *part = u * v * num::at(plane, r * width + c)?;
                    }
                }
                sum += f64::from(parts.iter().sum::<f32>());
                // ONNX takes the largest weighted neighbour instead of the largest sample.
                most = parts.iter().copied().fold(most, max_nan);
            }
        }
        let count = rows.len() * columns.len();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "rounding to the result type is intended"
        )]
        Ok(match (count, self.max) {
            (0, _) => 0.0,
            (_, true) => most,
            (n, false) => (sum / n as f64) as f32,
        })
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let max = match a.string("mode")?.as_deref() {
        None | Some("avg") => false,
        Some("max") => true,
        Some(other) => return Err(OpError::expected("attribute `mode`", "avg or max", other)),
    };
    let half_pixel = match a.string("coordinate_transformation_mode")?.as_deref() {
        None => a.opset() >= 16,
        Some("half_pixel") => true,
        Some("output_half_pixel") => false,
        Some(other) => {
            return Err(OpError::expected(
                "attribute `coordinate_transformation_mode`",
                "half_pixel or output_half_pixel",
                other,
            ));
        }
    };
    let number = |name: &str, default: i64, low: i64| -> OpResult<i64> {
        let v = a.int(name)?.unwrap_or(default);
        if (low..=1 << 20).contains(&v) {
            Ok(v)
        } else {
            Err(OpError::expected(
                format!("attribute `{name}`"),
                format!("{low} or more"),
                v,
            ))
        }
    };
    Ok(Box::new(RoiAlign {
        max,
        size: (number("output_height", 1, 1)?, number("output_width", 1, 1)?),
        samples: number("sampling_ratio", 0, 0)?,
        scale: a.float("spatial_scale")?.unwrap_or(1.0),
        half_pixel,
    }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("RoiAlign", 10, 3)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    let case = |max, samples, half_pixel| {
        let op = RoiAlign {
            max,
            size: (3, 2),
            samples,
            scale: 0.5,
            half_pixel,
        };
        let inputs = vec![
            input(&[2, 3, 7, 9]),
            input(&[5, 4]).range(0.0, 14.0),
            input(&[5]).ints(0, 1),
        ];
        Case::new(op, inputs).host_only("no kernel yet")
    };
    vec![case(false, 2, true), case(false, 0, false), case(true, 2, true)]
}
