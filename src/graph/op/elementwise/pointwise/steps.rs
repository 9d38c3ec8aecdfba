//! Expressions as steps, for devices without a compiler.

use super::{Binary, Expr, Unary};
use crate::backend::kernel::program::{Program, Register, Step, Steps};
use crate::graph::op::{OpError, OpResult};
use crate::tensor::DType;

/// What an expression becomes steps for.
#[derive(Clone, Copy)]
struct OperandTypes<'a> {
    /// Element types of the operands.
    types: &'a [DType],
    /// Integers have 64 bits instead of 32.
    wide: bool,
}

impl Expr {
    /// The expression over operands of these types, with integers of 64 bits if `wide`, otherwise
    /// 32. Integers of narrower types wrap to their low bits, as on the host.
    pub(super) fn program(&self, types: &[DType], wide: bool) -> OpResult<Program> {
        let mut steps = Steps::default();
        let value = self.add(OperandTypes { types, wide }, &mut steps)?;
        Ok(Program::new(steps, value, wide))
    }

    fn add(&self, to: OperandTypes<'_>, steps: &mut Steps) -> OpResult<Register> {
        let value = self.add_whole(to, steps)?;
        let computes = match self {
            Self::Cast(..) | Self::Unary(..) => true,
            Self::Binary(f, ..) => !f.is_comparison() && !f.is_logical(),
            _ => false,
        };
        let dtype = self.dtype(to.types)?;
        let bits = dtype.bits_below(if to.wide { 64 } else { 32 });
        Ok(match bits.filter(|_| computes) {
            Some((bits, signed)) => steps.add(Step::Wrap {
                of: value,
                bits,
                signed,
            }),
            None => value,
        })
    }

    fn add_whole(&self, to: OperandTypes<'_>, steps: &mut Steps) -> OpResult<Register> {
        let dtype = |e: &Self| e.dtype(to.types);
        let unsigned = |t: DType| to.wide && t == DType::U64;
        let to_float = |x, t| {
            if unsigned(t) {
                Step::UnsignedToFloat(x)
            } else {
                Step::ToFloat(x)
            }
        };
        let step = match self {
            Self::Input(i) => Step::Argument(*i),
            Self::Const(v, t) => constant(*v, *t),
            Self::Unary(f, x) => {
                let value = x.add(to, steps)?;
                match (f, dtype(x)?) {
                    (_, t) if t.is_float() => Step::Unary(*f, value),
                    (Unary::Abs | Unary::Relu, DType::U64) => return Ok(value),
                    (Unary::Sign, DType::U64) => Step::IntIsTrue(value),
                    (Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu, _) => Step::IntUnary(*f, value),
                    _ => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
                }
            }
            Self::Not(x) => Step::Not(x.add(to, steps)?),
            Self::Test(test, x) => Step::Test(*test, x.add(to, steps)?),
            Self::Binary(f, a, b) => {
                let types = [dtype(a)?, dtype(b)?];
                let (a, b) = (a.add(to, steps)?, b.add(to, steps)?);
                match types.map(DType::is_float) {
                    [true, true] => Step::Binary(*f, a, b),
                    [true, false] => Step::Binary(*f, a, steps.add(to_float(b, types[1]))),
                    [false, false] if *f != Binary::Pow => integers(*f, [a, b], types, to)?,
                    _ => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
                }
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (c.add(to, steps)?, a.add(to, steps)?, b.add(to, steps)?);
                Step::Select(c, a, b)
            }
            Self::Cast(t, _) if !t.on_devices() => {
                return Err(OpError::NoKernel(format!("elements of type {t}")));
            }
            Self::Cast(t, x) => {
                let value = x.add(to, steps)?;
                let from = dtype(x)?;
                match (*t, from.is_float()) {
                    (DType::F16, true) if from != DType::F16 => Step::ToHalf(value),
                    (DType::F16, false) => Step::ToHalf(steps.add(to_float(value, from))),
                    (DType::Bool, true) => Step::FloatIsTrue(value),
                    (DType::Bool, false) => Step::IntIsTrue(value),
                    (t, false) if t.is_float() => to_float(value, from),
                    (t, true) if t.is_float() => return Ok(value),
                    (_, false) => return Ok(value),
                    (t, true) if unsigned(t) => Step::ToUnsigned(value),
                    // Only values that fit reach a reader that accepts them.
                    (DType::I64, true) if !to.wide => Step::ToNearestInt(value),
                    (_, true) => Step::ToInt(value),
                }
            }
        };
        Ok(steps.add(step))
    }
}

/// A function of two integers. Shifts are left to the host, which knows their width.
fn integers(f: Binary, [a, b]: [Register; 2], types: [DType; 2], to: OperandTypes<'_>) -> OpResult<Step> {
    if matches!(f, Binary::ShiftLeft | Binary::ShiftRight) {
        let [dtype, _] = types;
        return Err(OpError::NoKernel(format!("{f:?} has no kernel for {dtype}")));
    }
    Ok(if to.wide && types.contains(&DType::U64) {
        Step::UnsignedBinary(f, a, b)
    } else {
        Step::IntBinary(f, a, b)
    })
}

#[expect(clippy::cast_possible_truncation, reason = "constants are stored widened")]
fn constant(v: f64, t: DType) -> Step {
    if t.is_float() {
        Step::Float((v as f32).to_bits())
    } else {
        Step::Int(v as i64)
    }
}
