//! Quantization of floats to the integer domain, and dequantization.
//!
//! The integers store axis `axis` of the float tensor last; see [`crate::graph::op::int8`].

use crate::graph::op::case::{Case, constant, input};
use crate::graph::op::int8::{self, bytes, padded, tensor, word_operand};
use crate::graph::op::int8_layout::{logical_shape, positions, stored_shape};
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpResult, never_in_files, operand, split_at};
use crate::kernels::int8_quantize::{DEQUANTIZE, DequantizeArgs, QUANTIZE, QuantizeArgs};
use crate::lower::{Call, LowerCx, Planned};
use crate::num;
use crate::quant::fixed::{Affine, Output};
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Quantizes floats as ONNX `QuantizeLinear` does. Operand 1 holds the [`thresholds`].
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Quantize {
    /// The axis of the operand that the result stores last.
    pub axis: usize,
    pub scale: f32,
    pub output: Output,
}

/// Dequantizes: `scale * (x - zero)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Dequantize {
    /// The axis of the result that the operand stores last.
    pub axis: usize,
    /// Its size.
    pub channels: i64,
    pub map: Affine,
    /// The type of the result.
    pub dtype: DType,
}

/// For each 8-bit integer, the smallest float that is quantized to it or to a larger one; NaN if
/// there is none.
pub(crate) fn least_floats(scale: f32, output: Output) -> Vec<f32> {
    // An order-preserving map between floats and integers.
    let key = |bits: i32| bits ^ ((bits >> 31) & i32::MAX);
    let float = |key_of: i32| f32::from_bits(key(key_of).cast_unsigned());
    let [first, last] = [f32::NEG_INFINITY, f32::INFINITY].map(|v| key(v.to_bits().cast_signed()));
    let least = |q: i8| {
        // The answer is above `low` and at most `high`.
        let [mut low, mut high] = [i64::from(first) - 1, i64::from(last)];
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            #[expect(clippy::cast_possible_truncation, reason = "between two 32-bit integers")]
            let is_enough = output.quantized(float(middle as i32), scale) >= q;
            *(if is_enough { &mut high } else { &mut low }) = middle;
        }
        #[expect(clippy::cast_possible_truncation, reason = "between two 32-bit integers")]
        let found = float(high as i32);
        if output.quantized(found, scale) >= q {
            found
        } else {
            f32::NAN
        }
    };
    (i8::MIN..=i8::MAX).map(least).collect()
}

/// For each 8-bit integer, the least float that is quantized to it or to a larger one: operand 1 of
/// [`Int8Quantize`].
pub fn thresholds(scale: f32, output: Output) -> OpResult<HostTensor> {
    let list = least_floats(scale, output);
    Ok(HostTensor::from_f32(&[list.len()], &list)?)
}

impl Op for Int8Quantize {
    fn name(&self) -> &str {
        "Int8Quantize"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.float(0)?;
        Ok(vec![Fact::new(DType::I8, stored_shape(&x.shape, self.axis)?)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = stored_shape(&Shape::fixed(x.shape()), self.axis)?;
        let shape = shape.sizes()?;
        let mut y = crate::graph::op::filled(&shape, self.output.of(0))?;
        let (data, thresholds) = (x.to_f32()?, operand(inputs, 1)?.to_f32()?);
        positions(x.shape(), self.axis, |to, from| {
            if let (Some(y), Some(x)) = (y.get_mut(to), data.get(from)) {
                // NaN reaches no threshold and keeps the zero point, which fills y.
                let below = thresholds.partition_point(|t| t <= x);
                if let Ok(q) = i8::try_from(num::signed(below) - 129) {
                    *y = q;
                }
            }
        })?;
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn reads_wide(&self, input: usize) -> bool {
        input == 0
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (_, channels, inner) = split_at(&cx.shape(0)?, self.axis)?;
        let count = int8::words(&cx.out_fact(0)?.shape)?;
        let args = QuantizeArgs::<Planned> {
            x: cx.input(0)?,
            thresholds: cx.input(1)?,
            y: cx.output(0)?,
            words: channels.ceil_div(4)?,
            channels,
            inner,
            scale: self.scale,
            inverse: 1.0 / self.scale,
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
            count,
        };
        cx.emit(
            Call::new(&QUANTIZE, 64).grid(args.count.ceil_div(64)?, 1, 1),
            args,
        )
    }
}

impl Op for Int8Dequantize {
    fn name(&self) -> &str {
        "Int8Dequantize"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = int8::fact(cx, 0)?;
        let shape = logical_shape(&x.shape, self.axis, self.channels)?;
        Ok(vec![Fact::new(self.dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let x = operand(inputs, 0)?;
        let shape = logical_shape(&Shape::fixed(x.shape()), self.axis, self.channels)?;
        let shape = shape.sizes()?;
        let (data, mut y) = (bytes(x)?, crate::graph::op::filled(&shape, 0f32)?);
        positions(&shape, self.axis, |from, to| {
            if let (Some(y), Some(x)) = (y.get_mut(to), data.get(from)) {
                *y = self.map.real((*x).into());
            }
        })?;
        Ok(vec![HostTensor::from_floats(self.dtype, &shape, &y)?])
    }

    fn reads_bytes(&self) -> bool {
        true
    }

    fn supports_epilogue(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let out = cx.out_fact(0)?.shape.clone();
        let (_, channels, inner) = split_at(&out, self.axis)?;
        let args = DequantizeArgs::<Planned> {
            x: word_operand(cx, 0)?,
            y: cx.output(0)?,
            count: out.count()?,
            stride: padded(&channels)?,
            channels,
            inner,
            scale: self.map.scale,
            zero: self.map.zero.into(),
        };
        cx.emit(
            Call::new(&DEQUANTIZE, 64).grid(args.count.ceil_div(2 * 64)?, 1, 1),
            args,
        )
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&QUANTIZE.kernel, &DEQUANTIZE.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let shapes: [(&[usize], usize); 4] = [
        (&[1, 3, 5, 7], 1),
        (&[2, 8, 3], 1),
        (&[3, 10], 1),
        (&[2, 5, 6], 0),
    ];
    for (shape, axis) in shapes {
        for (scale, zero) in [(0.013, -7), (0.25, -128)] {
            let output = Output::new(zero);
            let Ok(thresholds) = thresholds(scale, output) else {
                continue;
            };
            let quantize = Int8Quantize { axis, scale, output };
            all.push(Case::new(
                quantize,
                vec![input(shape).range(-2.0, 2.0), constant(thresholds)],
            ));
            let Ok(Ok(stored)) = stored_shape(&Shape::fixed(shape), axis).map(|s| s.sizes()) else {
                continue;
            };
            let dequantize = Int8Dequantize {
                axis,
                channels: num::signed(shape[axis]),
                map: Affine { scale, zero },
                dtype: DType::F32,
            };
            all.push(Case::new(dequantize, vec![int8::case_input(&stored)]));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::quantize_linear::quantize;

    #[test]
    fn thresholds_separate_what_division_and_rounding_do() {
        for (scale, output) in [
            (0.1, Output::new(3)),
            (1.0, Output::new(-128)),
            (
                0.007_843_138,
                Output {
                    zero: 0,
                    low: -10,
                    high: 100,
                },
            ),
            (3e-38, Output::new(127)),
        ] {
            let list = least_floats(scale, output);
            let limits = (output.low.into(), output.high.into());
            let mut near = vec![0.0, f32::MIN, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
            for t in list.iter().filter(|t| t.is_finite()) {
                near.extend([t.next_down(), *t, t.next_up()]);
            }
            for x in near {
                let by_table = -129 + list.iter().filter(|t| **t <= x).count() as i64;
                assert_eq!(
                    by_table,
                    quantize(x, scale, output.zero.into(), limits),
                    "{x} by {scale}"
                );
            }
        }
    }
}
