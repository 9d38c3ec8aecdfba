//! Reference evaluation of expressions.

use super::{Binary, Expr, Unary, broadcast_to};
use crate::backend::kernel::real::{Real, rounded};
use crate::graph::op::{Inputs, OpError, OpResult, filled, operand};
use crate::tensor::{DType, HostTensor};
use Buffer::{Floats, Ints};

/// A dense intermediate of the evaluator.
enum Buffer<F> {
    Floats(Vec<F>),
    /// Integers; `u64` elements as their bits.
    Ints(Vec<i64>),
}

impl Expr {
    /// Evaluates the expression to a tensor of type `dtype`.
    pub(super) fn tensor<F: Real>(
        &self,
        inputs: &Inputs<'_>,
        types: &[DType],
        shape: &[usize],
    ) -> OpResult<HostTensor> {
        let dtype = self.dtype(types)?;
        Ok(match self.eval::<F>(inputs, types, shape)? {
            Floats(v) => F::write(dtype, shape, &v)?,
            Ints(v) => HostTensor::from_ints(dtype, shape, &v)?,
        })
    }

    fn eval<F: Real>(&self, inputs: &Inputs<'_>, types: &[DType], shape: &[usize]) -> OpResult<Buffer<F>> {
        let go = |e: &Self| e.eval::<F>(inputs, types, shape);
        // Unsigned comparison and division differ from signed.
        let is_unsigned = |e: &Self| Ok::<_, OpError>(e.dtype(types)? == DType::U64);
        Ok(match self {
            Self::Input(i) => {
                let x = operand(inputs, *i)?;
                let full = broadcast_to(x, shape)?;
                if x.dtype().is_float() {
                    Floats(F::read(&full)?.into_owned())
                } else {
                    Ints(full.to_bits()?)
                }
            }
            Self::Const(v, t) if t.is_float() => Floats(filled(shape, F::of(*v))?),
            #[expect(
                clippy::cast_possible_truncation,
                reason = "constants are stored widened from these types"
            )]
            Self::Const(v, _) => Ints(filled(shape, *v as i64)?),
            Self::Unary(f, x) => unary(*f, go(x)?, is_unsigned(x)?)?,
            Self::Not(x) => match go(x)? {
                Ints(v) => Ints(each(&v, |x| i64::from(x == 0))),
                Floats(_) => return Err(OpError::expected("operand of Not", DType::Bool, "a float")),
            },
            Self::Test(test, x) => match go(x)? {
                Floats(v) => Ints(each(&v, |x| i64::from(test.holds(x)))),
                Ints(_) => return Err(OpError::expected("operand of a test", "a float", "an integer")),
            },
            Self::Binary(f, x, y) => binary(*f, (go(x)?, is_unsigned(x)?), (go(y)?, is_unsigned(y)?)),
            Self::Select(c, a, b) => {
                let Ints(c) = go(c)? else {
                    return Err(OpError::expected("condition", DType::Bool, "a float"));
                };
                match (go(a)?, go(b)?) {
                    (Floats(a), Floats(b)) => Floats(chosen(&c, &a, &b)),
                    (Ints(a), Ints(b)) => Ints(chosen(&c, &a, &b)),
                    _ => return Err(OpError::mismatch("element types", "float", "integer")),
                }
            }
            Self::Cast(t, x) => cast(*t, go(x)?, is_unsigned(x)?),
        })
    }
}

fn unary<F: Real>(f: Unary, x: Buffer<F>, is_unsigned: bool) -> OpResult<Buffer<F>> {
    Ok(match (x, f) {
        (Floats(v), f) => Floats(v.into_iter().map(|x| f.apply(x)).collect()),
        (Ints(v), Unary::Neg) => Ints(each(&v, i64::wrapping_neg)),
        (Ints(v), Unary::Abs | Unary::Relu) if is_unsigned => Ints(v),
        (Ints(v), Unary::Sign) if is_unsigned => Ints(each(&v, |x| i64::from(x != 0))),
        (Ints(v), Unary::Abs) => Ints(each(&v, i64::wrapping_abs)),
        (Ints(v), Unary::Sign) => Ints(each(&v, i64::signum)),
        (Ints(v), Unary::Relu) => Ints(each(&v, |x| x.max(0))),
        _ => return Err(OpError::Unsupported(format!("{f:?} on integers"))),
    })
}

/// A function of two buffers, each with whether it holds unsigned integers.
fn binary<F: Real>(f: Binary, x: (Buffer<F>, bool), y: (Buffer<F>, bool)) -> Buffer<F> {
    let compare = f.is_comparison();
    match (x.0, y.0) {
        (Floats(a), Floats(b)) if compare => Ints(both(&a, &b, |a, b| i64::from(f.compare(&a, &b)))),
        (Floats(a), Floats(b)) => Floats(both(&a, &b, |a, b| f.floats(a, b))),
        (Ints(a), Ints(b)) => match (compare, x.1 || y.1) {
            (false, false) => Ints(both(&a, &b, |a, b| f.ints(a, b))),
            (false, true) => {
                let y = both(unsigned(&a), unsigned(&b), |a, b| f.ints(a, b));
                Ints(bytemuck::cast_slice(&y).to_vec())
            }
            (true, false) => Ints(both(&a, &b, |a, b| i64::from(f.compare(&a, &b)))),
            (true, true) => Ints(both(unsigned(&a), unsigned(&b), |a, b| {
                i64::from(f.compare(&a, &b))
            })),
        },
        (Floats(a), Ints(b)) if y.1 => Floats(both(&a, unsigned(&b), |a, b| f.floats(a, F::of_u64(b)))),
        (Floats(a), Ints(b)) => Floats(both(&a, &b, |a, b| f.floats(a, F::of_i64(b)))),
        // ONNX `Pow` returns to the base's type.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "see above"
        )]
        (Ints(a), Floats(b)) => Ints(both(&a, &b, |a, b| (a as f64).powf(b.to_f64()) as i64)),
    }
}

fn cast<F: Real>(to: DType, x: Buffer<F>, is_unsigned: bool) -> Buffer<F> {
    match (x, to) {
        (Floats(v), DType::Bool) => Ints(each(&v, |x| i64::from(x != F::of(0.0)))),
        (Ints(v), DType::Bool) => Ints(each(&v, |x| i64::from(x != 0))),
        (Floats(v), t) if t.is_float() => Floats(each(&v, |x| rounded(t, x))),
        (Floats(v), DType::U64) => {
            let y = each(&v, F::to_u64);
            Ints(bytemuck::cast_slice(&y).to_vec())
        }
        // Floats are truncated towards zero.
        (Floats(v), t) => Ints(each(&v, |x| t.wrap(x.to_i64()))),
        (Ints(v), t) if t.is_float() && is_unsigned => {
            Floats(each(unsigned(&v), |x| rounded(t, F::of_u64(x))))
        }
        (Ints(v), t) if t.is_float() => Floats(each(&v, |x| rounded(t, F::of_i64(x)))),
        (Ints(v), t) => Ints(each(&v, |x| t.wrap(x))),
    }
}

/// The elements of `a` where the condition holds, of `b` elsewhere.
fn chosen<T: Copy>(condition: &[i64], a: &[T], b: &[T]) -> Vec<T> {
    let pairs = condition.iter().zip(a.iter().zip(b));
    pairs.map(|(c, (a, b))| if *c != 0 { *a } else { *b }).collect()
}

/// The `u64` elements with these bits.
fn unsigned(bits: &[i64]) -> &[u64] {
    bytemuck::cast_slice(bits)
}

/// Applies `f` to the elements of two lists of equal length.
fn both<A: Copy, B: Copy, T>(a: &[A], b: &[B], f: impl Fn(A, B) -> T) -> Vec<T> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// Applies `f` to each element.
fn each<A: Copy, T>(a: &[A], f: impl Fn(A) -> T) -> Vec<T> {
    a.iter().map(|v| f(*v)).collect()
}
