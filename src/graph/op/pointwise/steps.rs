//! Expressions as steps, for devices without a compiler.

use super::{Binary, Expr, Unary};
use crate::backend::kernel::program::{Program, Register, Step, Steps};
use crate::graph::op::{OpError, OpResult};
use crate::tensor::DType;

impl Expr {
    /// The expression over operands of these types. Integers of fewer than 32 bits wrap to their
    /// low bits, as on the host; others have 32 bits, as on all devices.
    pub(super) fn program(&self, types: &[DType]) -> OpResult<Program> {
        let mut steps = Steps::default();
        let value = self.add(types, &mut steps)?;
        Ok(Program::new(steps, value))
    }

    fn add(&self, types: &[DType], steps: &mut Steps) -> OpResult<Register> {
        let value = self.add_wide(types, steps)?;
        let computes = match self {
            Self::Cast(..) | Self::Unary(..) => true,
            Self::Binary(f, ..) => !f.is_comparison() && !f.is_logical(),
            _ => false,
        };
        let dtype = self.dtype(types)?;
        Ok(match dtype.narrow_bits().filter(|_| computes) {
            Some((bits, signed)) => steps.add(Step::Wrap {
                of: value,
                bits,
                signed,
            }),
            None => value,
        })
    }

    fn add_wide(&self, types: &[DType], steps: &mut Steps) -> OpResult<Register> {
        let is_float = |e: &Self| Ok::<_, OpError>(e.dtype(types)?.is_float());
        let step = match self {
            Self::Input(i) => Step::Argument(*i),
            Self::Const(v, t) => constant(*v, *t),
            Self::Unary(f, x) => {
                let value = x.add(types, steps)?;
                match (f, is_float(x)?) {
                    (_, true) => Step::Unary(*f, value),
                    (Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu, false) => Step::IntUnary(*f, value),
                    _ => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
                }
            }
            Self::Not(x) => Step::Not(x.add(types, steps)?),
            Self::Test(test, x) => Step::Test(*test, x.add(types, steps)?),
            Self::Binary(f, a, b) => {
                let (float_a, float_b) = (is_float(a)?, is_float(b)?);
                let (a, b) = (a.add(types, steps)?, b.add(types, steps)?);
                match (float_a, float_b) {
                    (true, true) => Step::Binary(*f, a, b),
                    (true, false) => Step::Binary(*f, a, steps.add(Step::ToFloat(b))),
                    (false, false) if *f != Binary::Pow => self.integers(*f, [a, b], types)?,
                    _ => return Err(OpError::NoKernel(format!("{f:?} on integers"))),
                }
            }
            Self::Select(c, a, b) => {
                let (c, a, b) = (c.add(types, steps)?, a.add(types, steps)?, b.add(types, steps)?);
                Step::Select(c, a, b)
            }
            Self::Cast(t, _) if !t.on_devices() => {
                return Err(OpError::NoKernel(format!("elements of type {t}")));
            }
            Self::Cast(t, x) => {
                let value = x.add(types, steps)?;
                match (*t, is_float(x)?) {
                    (DType::Bool, true) => Step::FloatIsTrue(value),
                    (DType::Bool, false) => Step::IntIsTrue(value),
                    (t, false) if t.is_float() => Step::ToFloat(value),
                    (t, true) if !t.is_float() => Step::ToInt(value),
                    _ => return Ok(value),
                }
            }
        };
        Ok(steps.add(step))
    }

    /// A function of two integers. Shifts are left to the host, which knows their width.
    fn integers(&self, f: Binary, [a, b]: [Register; 2], types: &[DType]) -> OpResult<Step> {
        if matches!(f, Binary::ShiftLeft | Binary::ShiftRight) {
            let dtype = self.dtype(types)?;
            return Err(OpError::NoKernel(format!("{f:?} has no kernel for {dtype}")));
        }
        Ok(Step::IntBinary(f, a, b))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "constants are stored widened; devices hold 32 bits of them"
)]
fn constant(v: f64, t: DType) -> Step {
    if t.is_float() {
        Step::Float((v as f32).to_bits())
    } else {
        Step::Int(v as i64 as i32)
    }
}
