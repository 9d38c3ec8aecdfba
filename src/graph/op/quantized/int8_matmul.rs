//! Matmul of two 8-bit activations.

use crate::graph::op::case::Case;
use crate::graph::op::int8::{self, byte_operand, fact, tensor, word_operand};
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{InferCx, Inputs, Op, OpDef, OpError, OpResult, never_in_files};
use crate::graph::rules;
use crate::kernels::int8_matmul::{Args, KERNEL};
use crate::lower::{Call, LowerCx, Planned, dots};
use crate::num;
use crate::quant::fixed::{Arithmetic, Factor, Output};
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// `y = clamp(round(factor * sum (a - a_zero) (b - b_zero)) + zero)` for a `i8[.., m, k]` and b
/// `i8[.., n, k]`, with k padded to whole words. The result is `i8[.., m, n]`, with n padded to
/// whole words. The leading axes are equal, or all those of one operand have size 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8MatMul {
    /// Number of terms of a sum; the padding after them is ignored.
    pub k: i64,
    pub a_zero: i32,
    pub b_zero: i32,
    pub factor: Factor,
    pub output: Output,
}

/// Splits a shape into leading sizes, rows, and the size of the last axis.
fn matrix<T>(shape: &[T]) -> OpResult<(&[T], &T, &T)> {
    match shape {
        [lead @ .., rows, last] => Ok((lead, rows, last)),
        _ => Err(OpError::expected("rank", "2 or more", shape.len())),
    }
}

/// A mask of the bits that `k` elements use in their last word.
fn tail(k: i64) -> i64 {
    match k.rem_euclid(4) {
        0 => u32::MAX.into(),
        rest => (1 << (8 * rest)) - 1,
    }
}

impl Op for Int8MatMul {
    fn name(&self) -> &str {
        "Int8MatMul"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let (a, b) = (fact(cx, 0)?, fact(cx, 1)?);
        let ((la, m, ka), (lb, n, kb)) = (matrix(&a.shape.0)?, matrix(&b.shape.0)?);
        cx.same("inner dimensions", ka, kb)?;
        cx.same("inner dimension and terms", ka, &int8::padded(&self.k.into())?)?;
        let mut shape = cx.broadcast(la, lb)?;
        shape.0.extend([m.clone(), int8::padded(n)?]);
        Ok(vec![Fact::new(a.dtype, shape)])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let ((a, da), (b, db)) = (byte_operand(inputs, 0)?, byte_operand(inputs, 1)?);
        let ((la, m, k), (lb, n, _)) = (matrix(a.shape())?, matrix(b.shape())?);
        let terms = num::exact::<usize, _>(self.k, "a number of terms")?;
        let lead = rules::broadcast(&Shape::fixed(la).0, &Shape::fixed(lb).0, &rules::equal)?;
        let lead = lead.sizes()?;
        let mut shape = lead.clone();
        shape.extend([*m, n.next_multiple_of(int8::WORD)]);
        let [step_a, step_b] = [(la, m), (lb, n)].map(|(own, rows)| {
            let is_one = own.iter().all(|d| *d == 1);
            if is_one { 0 } else { rows * k }
        });
        let mut y = crate::graph::op::room(&shape)?;
        for i in 0..crate::graph::op::count(&lead)? {
            for row in 0..*m {
                quota::check()?;
                let a = num::part(da, i * step_a + row * k..i * step_a + (row + 1) * k)?;
                for column in 0..n.next_multiple_of(int8::WORD) {
                    let at = i * step_b + column * k;
                    let b = if column < *n { db.get(at..at + k) } else { None };
                    let sum = b.map_or(0, |b| {
                        let centred = |(a, b): (&i8, &i8)| {
                            (i32::from(*a) - self.a_zero) * (i32::from(*b) - self.b_zero)
                        };
                        a.iter()
                            .zip(b)
                            .take(terms)
                            .map(centred)
                            .fold(0, i32::wrapping_add)
                    });
                    y.push(self.output.of(self.factor.apply(sum)));
                }
            }
        }
        Ok(vec![tensor(&shape, &y)?])
    }

    fn stores_bytes(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (a, b, out) = (cx.shape(0)?, cx.shape(1)?, cx.out_fact(0)?.shape.clone());
        let ((la, m, k), (lb, n, _)) = (matrix(&a.0)?, matrix(&b.0)?);
        let (lead, _, outputs) = matrix(&out.0)?;
        let words = k.ceil_div(4)?;
        cx.loops("sums", &words)?;
        let step = |own: &[Dim], rows: &Dim| -> OpResult<Dim> {
            if own.iter().all(|d| d.is(1)) {
                Ok(0.into())
            } else if own == lead {
                Ok(rows.mul(&words)?)
            } else {
                Err(OpError::NoKernel(format!("batches of {a} and {b}")))
            }
        };
        let (mantissa, shift, factor) = match self.factor {
            Factor::Fixed(f) => (f.mantissa(), f.shift(), 0.0),
            Factor::Float(f) => (0, 0, f),
        };
        let args = Args::<Planned> {
            a: word_operand(cx, 0)?,
            b: word_operand(cx, 1)?,
            y: cx.output(0)?,
            a_step: step(la, m)?,
            b_step: step(lb, n)?,
            batch: crate::shape::product(lead)?,
            m: m.clone(),
            n: n.clone(),
            outputs: outputs.ceil_div(4)?,
            words,
            k: self.k.into(),
            tail: tail(self.k).into(),
            a_zero: self.a_zero.into(),
            b_zero: self.b_zero.into(),
            mantissa: mantissa.into(),
            shift: shift.into(),
            zero: self.output.zero.into(),
            low: self.output.low.into(),
            high: self.output.high.into(),
            factor,
        };
        let mut call = Call::new(&KERNEL, 64);
        call = call.define_if(crate::kernels::FIXED, matches!(self.factor, Factor::Fixed(_)));
        let call = dots::select(cx.device(), &KERNEL, call);
        let grid = args.m.ceil_div(64)?;
        cx.emit(call.grid(grid, args.outputs.clone(), args.batch.clone()), args)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.row_products()
    }
}

pub static DEF: OpDef = OpDef {
    onnx: &[],
    import: never_in_files,
    kernels: &[&KERNEL.kernel],
    cases,
};

fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let shapes: [[&[usize]; 2]; 4] = [
        [&[5, 8], &[6, 8]],
        [&[2, 3, 7, 16], &[2, 3, 9, 16]],
        [&[2, 5, 12], &[1, 4, 12]],
        // More rows and columns than CPUs compute at once.
        [&[2, 200, 20], &[2, 270, 20]],
    ];
    // The last word is full in the first case only.
    let terms = [8, 14, 9, 18];
    for arithmetic in [Arithmetic::Fixed, Arithmetic::Float] {
        for ([a, b], k) in shapes.into_iter().zip(terms) {
            let Some(factor) = Factor::of_scales(arithmetic, 0.02, 0.03, 0.9) else {
                continue;
            };
            let op = Int8MatMul {
                k,
                a_zero: -4,
                b_zero: 9,
                factor,
                output: Output::new(2),
            };
            all.push(Case::new(op, vec![int8::case_input(a), int8::case_input(b)]));
        }
    }
    all
}
