//! Addition, subtraction and multiplication of 8-bit integers with their own scales.
//!
//! The arithmetic is that of TensorFlow Lite's reference kernels (appendix A.2 of
//! *Integer-Arithmetic-Only Inference*): always fixed point, since the sum of two scaled floats is
//! not the same on all devices.

use super::case::Case;
use super::int8::{self, byte_operand, fact, tensor, word_operand};
use super::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::graph::rules;
use crate::lower::{Call, LowerCx};
use crate::quant::fixed::{Affine, Multiplier, Output};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

crate::kernel! {
    static KERNEL: TypedKernel<Args> = "int8_binary" {
        count, words, a_words, b_words, a_rows, b_rows, inner: U32;
        a_zero, b_zero, a_mantissa, a_shift, b_mantissa, b_shift, mantissa, shift, zero, low, high: I32
    } [a: In Uint, b: In Uint, y: Out Uint]
    .linear()
}

/// Bits by which operands of a sum are shifted to the left before they are scaled.
const HEADROOM: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    Add,
    Sub,
    Mul,
}

/// An operand: its zero point and the factor that brings it to the common scale. A product uses
/// only the zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub zero: i32,
    pub factor: Multiplier,
}

/// `a` and `b` have the same rank and broadcast along axes of size 1, except the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Binary {
    pub function: Function,
    pub a: Side,
    pub b: Side,
    /// The factor from the common scale to that of the result.
    pub factor: Multiplier,
    pub output: Output,
}

impl Int8Binary {
    /// The operator for operands and a result with these maps. `None` if a factor is out of range.
    pub fn new(function: Function, a: Affine, b: Affine, y: Affine, output: Output) -> Option<Self> {
        let [sa, sb, sy] = [a, b, y].map(|m| f64::from(m.scale));
        if function == Function::Mul {
            let one = Multiplier::new(1.0)?;
            let side = |m: Affine| Side {
                zero: m.zero,
                factor: one,
            };
            return Some(Self {
                function,
                a: side(a),
                b: side(b),
                factor: Multiplier::new(sa * sb / sy)?,
                output,
            });
        }
        let twice = 2.0 * sa.max(sb);
        let side = |m: Affine, scale: f64| {
            Some(Side {
                zero: m.zero,
                factor: Multiplier::new(scale / twice)?,
            })
        };
        Some(Self {
            function,
            a: side(a, sa)?,
            b: side(b, sb)?,
            factor: Multiplier::new(twice / (f64::from(1u32 << HEADROOM) * sy))?,
            output,
        })
    }

    fn of(&self, a: i8, b: i8) -> i8 {
        let [a, b] = [(a, &self.a), (b, &self.b)].map(|(v, side)| (i32::from(v) - side.zero, side.factor));
        let scaled = |(v, factor): (i32, Multiplier)| factor.apply(v << HEADROOM);
        let sum = match self.function {
            Function::Add => scaled(a) + scaled(b),
            Function::Sub => scaled(a) - scaled(b),
            Function::Mul => a.0 * b.0,
        };
        self.output.of(self.factor.apply(sum))
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
        let shape = shape.as_fixed().unwrap_or_default();
        let steps = [a, b].map(|t| {
            let own = super::strides(t.shape());
            let sizes = t.shape().iter().zip(own);
            sizes
                .map(|(n, step)| if *n == 1 { 0 } else { step })
                .collect::<Vec<_>>()
        });
        let mut y = super::room(&shape)?;
        for at in super::window::indices(&shape) {
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
        let args = Args {
            count: int8::words(&out)?,
            a: word_operand(cx, 0)?,
            b: word_operand(cx, 1)?,
            y: cx.output(0)?,
            words: walk.words,
            inner: walk.inner,
            a_words: walk.steps[0][0].clone(),
            b_words: walk.steps[1][0].clone(),
            a_rows: walk.steps[0][1].clone(),
            b_rows: walk.steps[1][1].clone(),
            a_zero: self.a.zero.into(),
            b_zero: self.b.zero.into(),
            a_mantissa: self.a.factor.mantissa().into(),
            a_shift: self.a.factor.shift().into(),
            b_mantissa: self.b.factor.mantissa().into(),
            b_shift: self.b.factor.shift().into(),
            mantissa: self.factor.mantissa().into(),
            shift: self.factor.shift().into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
        };
        let call = match self.function {
            Function::Add => Call::new(&KERNEL, 64),
            Function::Sub => Call::new(&KERNEL, 64).define("SUB", 1),
            Function::Mul => Call::new(&KERNEL, 64).define("MUL", 1),
        };
        cx.emit(call.grid(args.count.ceil_div(64)?, 1, 1), args)
    }
}

/// How a kernel finds the operands of result word `i`: at
/// `i % words + i / words % inner * steps[0] + i / words / inner * steps[1]`.
struct Walk {
    words: Dim,
    inner: Dim,
    steps: [[Dim; 2]; 2],
}

impl Walk {
    /// Fails if an operand is repeated along more than the leading or the middle axes.
    fn new(a: &Shape, b: &Shape, out: &Shape) -> OpResult<Self> {
        let (lead, last) = int8::last(&out.0)?;
        let words = last.exact_div(&4.into()).unwrap_or_default();
        // The first axis is the outer one; the others are merged.
        let (outer, rest) = lead
            .split_first()
            .map_or((1.into(), &[][..]), |(o, rest)| (o.clone(), rest));
        let inner = crate::shape::product(rest)?;
        let step = |own: &Shape| -> OpResult<[Dim; 2]> {
            let (lead, _) = int8::last(&own.0)?;
            let (first, rest_own) = lead
                .split_first()
                .map_or((1.into(), &[][..]), |(o, r)| (o.clone(), r));
            let row = if rest_own == rest {
                words.clone()
            } else if rest_own.iter().all(|d| d.is(1)) {
                0.into()
            } else {
                return Err(OpError::NoKernel(format!("{own} broadcast to {out}")));
            };
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
    let maps = [(0.05, -3), (0.02, 10), (0.06, -20)].map(|(scale, zero)| Affine { scale, zero });
    let shapes: [[&[usize]; 2]; 4] = [
        [&[2, 3, 5, 8], &[2, 3, 5, 8]],
        [&[2, 3, 5, 8], &[2, 1, 1, 8]],
        [&[1, 1, 1, 12], &[3, 2, 2, 12]],
        [&[5, 4], &[1, 4]],
    ];
    let mut all = Vec::new();
    for function in [Function::Add, Function::Sub, Function::Mul] {
        for [a, b] in shapes {
            let [ma, mb, my] = maps;
            let output = Output {
                low: -50,
                ..Output::new(my.zero)
            };
            if let Some(op) = Int8Binary::new(function, ma, mb, my, output) {
                all.push(Case::new(op, vec![int8::case_input(a), int8::case_input(b)]));
            }
        }
    }
    all
}
