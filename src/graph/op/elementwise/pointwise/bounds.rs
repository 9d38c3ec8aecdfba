//! Bounds of integer expressions.

use super::{Binary, Expr, Unary};
use crate::graph::bounds::Bounds;
use crate::graph::op::OpResult;
use crate::tensor::DType;

impl Expr {
    /// Bounds of the value over operands of these types and bounds; `None` for a float.
    pub(super) fn bounds(&self, types: &[DType], inputs: &[Option<Bounds>]) -> OpResult<Option<Bounds>> {
        let Some(of_type) = Bounds::of(self.dtype(types)?) else {
            return Ok(None);
        };
        let go = |e: &Self| e.bounds(types, inputs);
        let found = match self {
            Self::Input(i) => inputs.get(*i).copied().flatten(),
            Self::Const(v, _) => whole(*v),
            Self::Not(_) | Self::Test(..) => Some(Bounds::TRUTH),
            Self::Unary(f, x) => go(x)?.and_then(|x| unary(*f, x)),
            Self::Binary(f, ..) if f.is_comparison() || f.is_logical() => Some(Bounds::TRUTH),
            Self::Binary(f, a, b) => go(a)?.zip(go(b)?).and_then(|(a, b)| binary(*f, a, b)),
            Self::Select(_, a, b) => go(a)?.zip(go(b)?).map(|(a, b)| a.join(b)),
            Self::Cast(_, x) => go(x)?,
        };
        // What leaves the type wraps around.
        Ok(Some(found.filter(|b| b.within(of_type)).unwrap_or(of_type)))
    }

    /// True if an integer of the expression may need more than 32 bits. The result may be an
    /// exception: if it is a float that is cast and `saturates`, kernels saturate it.
    pub(super) fn is_wide(
        &self,
        types: &[DType],
        inputs: &[Option<Bounds>],
        saturates: bool,
    ) -> OpResult<bool> {
        let own = self.bounds(types, inputs)?.is_some_and(|b| !b.fits_32());
        let go = |e: &Self| e.is_wide(types, inputs, false);
        Ok(own && !(saturates && self.is_cast_of_float(types)?)
            || match self {
                Self::Input(_) | Self::Const(..) => false,
                Self::Unary(_, x) | Self::Test(_, x) | Self::Not(x) | Self::Cast(_, x) => go(x)?,
                Self::Binary(_, a, b) => go(a)? || go(b)?,
                Self::Select(c, a, b) => go(c)? || go(a)? || go(b)?,
            })
    }

    /// True for a conversion of a float to a 64-bit signed integer.
    pub(super) fn is_cast_of_float(&self, types: &[DType]) -> OpResult<bool> {
        Ok(match self {
            Self::Cast(DType::I64, x) => x.dtype(types)?.is_float(),
            _ => false,
        })
    }
}

/// The bounds of a constant, which is stored as a float.
fn whole(v: f64) -> Option<Bounds> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "constants are stored widened from integers"
    )]
    let whole = v as i128;
    Some(Bounds::new(whole, whole))
}

/// The largest magnitude.
fn magnitude(b: Bounds) -> i128 {
    b.low.abs().max(b.high.abs())
}

fn unary(f: Unary, x: Bounds) -> Option<Bounds> {
    Some(match f {
        Unary::Neg => Bounds::new(-x.high, -x.low),
        Unary::Abs if x.low >= 0 => x,
        Unary::Abs => Bounds::new(0, magnitude(x)),
        Unary::Sign => Bounds::new(-1, 1),
        Unary::Relu => Bounds::new(x.low.max(0), x.high.max(0)),
        _ => return None,
    })
}

fn binary(f: Binary, a: Bounds, b: Bounds) -> Option<Bounds> {
    let positive = a.low >= 0 && b.low >= 0;
    Some(match f {
        Binary::Add => a.corners(b, |a, b| a + b),
        Binary::Sub => a.corners(b, |a, b| a - b),
        // Products of 64-bit integers fit.
        Binary::Mul => a.corners(b, |a, b| a.saturating_mul(b)),
        Binary::Min => a.corners(b, i128::min),
        Binary::Max => a.corners(b, i128::max),
        Binary::Div if positive => Bounds::new(0, a.high),
        Binary::Div => Bounds::new(-magnitude(a), magnitude(a)),
        Binary::Mod if a.low >= 0 && b.low > 0 => Bounds::new(0, a.high.min(b.high - 1)),
        // The sign is that of the divisor.
        Binary::Mod => {
            let most = (magnitude(b) - 1).max(0);
            Bounds::new(if b.low < 0 { -most } else { 0 }, most)
        }
        // The sign is that of the dividend.
        Binary::FMod => {
            let most = magnitude(a).min((magnitude(b) - 1).max(0));
            Bounds::new(if a.low < 0 { -most } else { 0 }, most)
        }
        Binary::BitwiseAnd if positive => Bounds::new(0, a.high.min(b.high)),
        Binary::BitwiseAnd if a.low >= 0 => Bounds::new(0, a.high),
        Binary::BitwiseAnd if b.low >= 0 => Bounds::new(0, b.high),
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => {
            // All bits up to the highest one that either has.
            let most = magnitude(a).max(magnitude(b)).unsigned_abs();
            let most = (most + 1).checked_next_power_of_two()?.cast_signed() - 1;
            Bounds::new(if positive { 0 } else { -most - 1 }, most)
        }
        Binary::ShiftRight if positive => Bounds::new(0, a.high),
        _ => return None,
    })
}
