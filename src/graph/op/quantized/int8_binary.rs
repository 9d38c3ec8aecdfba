//! Addition, subtraction and multiplication of 8-bit integers whose scales may differ.
//!
//! In fixed point the arithmetic is that of TensorFlow Lite's reference kernels (appendix A.2 of
//! *Integer-Arithmetic-Only Inference*). Otherwise it is that of ONNX: both operands are
//! dequantized, and the float result is quantized.

use crate::graph::op::case::{Case, constant};
use crate::graph::op::int8::{self, byte_operand, fact, tensor, word_operand};
use crate::graph::op::int8_quantize::least_floats;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::graph::rules;
pub use crate::kernels::int8_binary::Function;
use crate::kernels::int8_binary::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Planned};
use crate::quant::fixed::{Affine, Arithmetic, Multiplier, Output};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};

/// Bits by which operands of a sum are shifted left before they are scaled.
const HEADROOM: u32 = 20;

/// How a result is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Multipliers bring the operands of a sum to a common scale, and the sum to the scale of the
    /// result. Operands of a product are not rescaled.
    Fixed {
        operands: [Multiplier; 2],
        result: Multiplier,
    },
    /// The float result is quantized with this scale.
    Float { scale: f32 },
}

/// Operands a and b have the same rank. They broadcast along axes of size 1, but not along the last
/// axis. Operand 2 holds the [`tables`](Self::tables).
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Binary {
    function: Function,
    maps: [Affine; 2],
    form: Form,
    output: Output,
}

impl Int8Binary {
    /// The operator for operands with these maps and a result with this scale. `None` if a
    /// multiplier is out of range.
    pub fn new(
        function: Function,
        arithmetic: Arithmetic,
        maps: [Affine; 2],
        scale: f32,
        output: Output,
    ) -> Option<Self> {
        let [sa, sb, sy] = [maps[0].scale, maps[1].scale, scale].map(f64::from);
        let form = match (arithmetic, function) {
            (Arithmetic::Float, _) => Form::Float { scale },
            (Arithmetic::Fixed, Function::Mul) => Form::Fixed {
                operands: [Multiplier::new(1.0)?; 2],
                result: Multiplier::new(sa * sb / sy)?,
            },
            (Arithmetic::Fixed, Function::Add | Function::Sub) => {
                let twice = 2.0 * sa.max(sb);
                Form::Fixed {
                    operands: [Multiplier::new(sa / twice)?, Multiplier::new(sb / twice)?],
                    result: Multiplier::new(twice / (f64::from(1u32 << HEADROOM) * sy))?,
                }
            }
        };
        Some(Self {
            function,
            maps,
            form,
            output,
        })
    }

    /// What integer `q` of operand `i` contributes to a fixed-point result.
    fn term(&self, i: usize, factor: Multiplier, q: i32) -> i32 {
        let steps = q - self.maps[i].zero;
        match self.function {
            Function::Mul => steps,
            Function::Add | Function::Sub => factor.apply(steps << HEADROOM),
        }
    }

    /// Lookup tables for kernels: the terms of the integers -128 to 127 of a, then those of b, as
    /// integers or as the bits of floats. For floats, the [`least_floats`] of the result follow.
    pub fn tables(&self) -> OpResult<HostTensor> {
        let bits = |v: &f32| i64::from(v.to_bits().cast_signed());
        let mut all = Vec::with_capacity(3 * 256);
        for i in 0..2 {
            all.extend((-128..=127).map(|q| match self.form {
                Form::Fixed { operands, .. } => self.term(i, operands[i], q).into(),
                Form::Float { .. } => bits(&self.maps[i].real(q)),
            }));
        }
        if let Form::Float { scale } = self.form {
            all.extend(least_floats(scale, self.output).iter().map(bits));
        }
        Ok(HostTensor::from_ints(DType::I32, &[all.len()], &all)?)
    }

    fn of(&self, a: i8, b: i8) -> i8 {
        let [a, b] = [a, b].map(i32::from);
        match self.form {
            Form::Fixed { operands, result } => {
                let [a, b] = [self.term(0, operands[0], a), self.term(1, operands[1], b)];
                let sum = match self.function {
                    Function::Add => a + b,
                    Function::Sub => a - b,
                    Function::Mul => a * b,
                };
                self.output.of(result.apply(sum))
            }
            Form::Float { scale } => {
                let [a, b] = [self.maps[0].real(a), self.maps[1].real(b)];
                let real = match self.function {
                    Function::Add => a + b,
                    Function::Sub => a - b,
                    Function::Mul => a * b,
                };
                self.output.quantized(real, scale)
            }
        }
    }
}

impl Op for Int8Binary {
    fn name(&self) -> &str {
        match self.function {
            Function::Add => "Int8Add",
            Function::Sub => "Int8Sub",
            Function::Mul => "Int8Mul",
        }
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (a, b) = (fact(cx, 0)?, fact(cx, 1)?);
        if a.shape.rank() != b.shape.rank() {
            return Err(OpError::mismatch("ranks", &a.shape, &b.shape));
        }
        let ((la, ca), (lb, cb)) = (int8::last(&a.shape.0)?, int8::last(&b.shape.0)?);
        cx.same("sizes of the last axis", ca, cb)?;
        let mut shape = cx.broadcast(la, lb)?;
        shape.0.push(ca.clone());
        Ok(vec![Fact::new(a.dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let ((a, da), (b, db)) = (byte_operand(inputs, 0)?, byte_operand(inputs, 1)?);
        let shape = rules::broadcast(
            &Shape::fixed(a.shape()).0,
            &Shape::fixed(b.shape()).0,
            &rules::equal,
        )?;
        let shape = shape.sizes()?;
        let steps = [a, b].map(|t| {
            let own = crate::graph::op::strides(t.shape());
            let sizes = t.shape().iter().zip(own);
            sizes
                .map(|(n, step)| if *n == 1 { 0 } else { step })
                .collect::<Vec<_>>()
        });
        let mut y = crate::graph::op::room(&shape)?;
        for at in crate::graph::op::window::indices(&shape) {
            let [ia, ib] = steps
                .each_ref()
                .map(|steps| at.iter().zip(steps).map(|(i, step)| i * step).sum::<usize>());
            if let (Some(a), Some(b)) = (da.get(ia), db.get(ib)) {
                y.push(self.of(*a, *b));
            }
        }
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (a, b) = (cx.shape(0)?, cx.shape(1)?);
        let out = cx.out_fact(0)?.shape.clone();
        let walk = Walk::new(&a, &b, &out)?;
        let (scale, [a_factor, b_factor], factor) = match self.form {
            Form::Float { scale } => (scale, [(0, 0); 2], (0, 0)),
            Form::Fixed { operands, result } => {
                let parts = |m: Multiplier| (m.mantissa(), m.shift());
                (1.0, operands.map(parts), parts(result))
            }
        };
        let args = Args::<Planned> {
            count: int8::words(&out)?,
            a: word_operand(cx, 0)?,
            b: word_operand(cx, 1)?,
            tables: cx.input(2)?,
            y: cx.output(0)?,
            words: walk.words,
            inner: walk.inner,
            a_words: walk.steps[0][0].clone(),
            b_words: walk.steps[1][0].clone(),
            a_rows: walk.steps[0][1].clone(),
            b_rows: walk.steps[1][1].clone(),
            a_scale: self.maps[0].scale,
            b_scale: self.maps[1].scale,
            scale,
            inverse: 1.0 / scale,
            a_zero: self.maps[0].zero.into(),
            b_zero: self.maps[1].zero.into(),
            a_mantissa: a_factor.0.into(),
            a_shift: a_factor.1.into(),
            b_mantissa: b_factor.0.into(),
            b_shift: b_factor.1.into(),
            mantissa: factor.0.into(),
            shift: factor.1.into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
        };
        let mut call = Call::new(&KERNEL, 64).form(self.function.define());
        if matches!(self.form, Form::Fixed { .. }) {
            call = call.define(crate::kernels::FIXED, 1);
        }
        cx.emit(call.grid(args.count.ceil_div(64)?, 1, 1), args)
    }
}

/// Whether kernels can broadcast an operand of sizes `own` to sizes `out`, both without the axis
/// that is stored last. They broadcast along the first axis, and along all others together.
pub fn can_repeat(own: &[Dim], out: &[Dim]) -> bool {
    match (own, out) {
        ([first, rest @ ..], [outer, others @ ..]) => {
            (first == outer || first.is(1)) && (rest == others || rest.iter().all(|d| d.is(1)))
        }
        _ => own.is_empty() && out.is_empty(),
    }
}

/// How a kernel finds the operand words of result word `i`. An operand with these `steps` is read
/// at `i % words + i / words % inner * steps[0] + i / words / inner * steps[1]`.
struct Walk {
    words: Dim,
    inner: Dim,
    steps: [[Dim; 2]; 2],
}

impl Walk {
    /// Fails unless kernels [can broadcast](can_repeat) the operands.
    fn new(a: &Shape, b: &Shape, out: &Shape) -> OpResult<Self> {
        let (lead, last) = int8::last(&out.0)?;
        let words = last.exact_div(&4.into());
        let words = words.ok_or_else(|| OpError::expected("channels", "whole words", last))?;
        // The first axis is the outer one; the others are merged.
        let (outer, rest) = lead
            .split_first()
            .map_or((1.into(), &[][..]), |(o, rest)| (o.clone(), rest));
        let inner = crate::shape::product(rest)?;
        let step = |own: &Shape| -> OpResult<[Dim; 2]> {
            let (own_lead, _) = int8::last(&own.0)?;
            if !can_repeat(own_lead, lead) {
                return Err(OpError::NoKernel(format!("{own} broadcast to {out}")));
            }
            let (first, rest_own) = own_lead
                .split_first()
                .map_or((1.into(), &[][..]), |(o, r)| (o.clone(), r));
            let row = if rest_own == rest { words.clone() } else { 0.into() };
            let plane = if first.is(1) && !outer.is(1) {
                0.into()
            } else {
                crate::shape::product(rest_own)?.mul(&words)?
            };
            Ok([row, plane])
        };
        let steps = [step(a)?, step(b)?];
        Ok(Self { words, inner, steps })
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let maps = [(0.05, -3), (0.02, 10)].map(|(scale, zero)| Affine { scale, zero });
    let output = Output {
        low: -50,
        ..Output::new(-20)
    };
    let shapes: [[&[usize]; 2]; 4] = [
        [&[2, 3, 5, 8], &[2, 3, 5, 8]],
        [&[2, 3, 5, 8], &[2, 1, 1, 8]],
        [&[1, 1, 1, 12], &[3, 2, 2, 12]],
        [&[5, 4], &[1, 4]],
    ];
    let mut all = Vec::new();
    for function in [Function::Add, Function::Sub, Function::Mul] {
        for arithmetic in [Arithmetic::Float, Arithmetic::Fixed] {
            for [a, b] in shapes {
                let Some(op) = Int8Binary::new(function, arithmetic, maps, 0.06, output) else {
                    continue;
                };
                let Ok(tables) = op.tables() else { continue };
                let inputs = vec![int8::case_input(a), int8::case_input(b), constant(tables)];
                all.push(Case::new(op, inputs));
            }
        }
    }
    all
}
