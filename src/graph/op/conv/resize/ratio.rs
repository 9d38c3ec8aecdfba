//! Scales as fractions, so that coordinates are exact.

use super::Coordinates;
use crate::graph::op::{OpError, OpResult};
use crate::num;
use crate::shape::Dim;
use std::cmp::Ordering;

/// The scale `up / down`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) up: i64,
    pub(super) down: i64,
}

/// Larger powers of two are not represented: a scale below 2^-40 leaves no results.
const EXPONENTS: i32 = 40;

impl Ratio {
    pub(super) const ONE: Self = Self { up: 1, down: 1 };

    /// Exactly this number above 0.
    pub(super) fn of(scale: f32) -> Self {
        let bits = scale.to_bits();
        let (fraction, exponent) = (i64::from(bits & 0x7f_ffff), bits >> 23 & 0xff);
        let hidden = if exponent == 0 { 0 } else { 1 << 23 };
        let mantissa = (fraction + hidden).max(1);
        let zeros = mantissa.trailing_zeros();
        let mantissa = mantissa >> zeros;
        // The number is `mantissa * 2^power`.
        let power = exponent.max(1).cast_signed() - 150 + zeros.cast_signed();
        let two = |power: i32| 1i64 << power.clamp(0, EXPONENTS);
        Self {
            up: mantissa.saturating_mul(two(power)),
            down: two(-power),
        }
    }

    pub(super) fn is_one(self) -> bool {
        self.up == self.down
    }

    pub(super) fn shrinks(self) -> bool {
        self.up < self.down
    }

    /// The order of two scales.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let product = |a: i64, b: i64| i128::from(a) * i128::from(b);
        product(self.up, other.down).cmp(&product(other.up, self.down))
    }

    /// `size` scaled and rounded, ties up.
    pub(super) fn rounded(self, size: usize) -> OpResult<usize> {
        let twice = 2 * i128::from(self.up) * i128::from(num::signed(size)) + i128::from(self.down);
        let size = twice.checked_div(2 * i128::from(self.down));
        let size = size.ok_or_else(|| OpError::expected("size to resize from", "1 or more", 0))?;
        Ok(num::exact(size, "a scaled size")?)
    }

    #[expect(clippy::cast_precision_loss, reason = "rounded once")]
    pub(super) fn to_f64(self) -> f64 {
        self.up as f64 / self.down as f64
    }

    pub(super) fn dims(self) -> [Dim; 2] {
        [self.up.into(), self.down.into()]
    }
}

/// The coordinates along an axis: that of result `i` is `(i * step + first) / unit`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) step: Dim,
    pub(super) first: Dim,
    pub(super) unit: Dim,
}

impl Line {
    /// The coordinates in an operand of `size` elements, of `out` results, with the scale
    /// `up / down`. Not for a region; and where it matters, a single result has coordinate 0.
    pub(super) fn of(
        coordinates: Coordinates,
        [up, down]: &[Dim; 2],
        size: &Dim,
        out: &Dim,
    ) -> OpResult<Self> {
        let (one, two) = (Dim::from(1), Dim::from(2));
        let mut line = Self {
            step: down.mul(&two)?,
            first: Dim::from(0),
            unit: up.mul(&two)?,
        };
        match coordinates {
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => line.first = down.sub(up)?,
            Coordinates::HalfPixelSymmetric => {
                // The results' center is at that of the operand.
                let center = size.sub(&one)?.mul(up)?;
                line.first = center.sub(&out.sub(&one)?.mul(down)?)?;
            }
            Coordinates::TfHalfPixelForNn => line.first = down.clone(),
            Coordinates::AlignCorners => {
                line.step = size.sub(&one)?.mul(&two)?;
                line.unit = out.sub(&one)?.mul(&two)?;
            }
            Coordinates::Asymmetric | Coordinates::TfCropAndResize => {}
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_exact_fractions() {
        let of = |scale| {
            let r = Ratio::of(scale);
            (r.up, r.down)
        };
        assert_eq!(
            [of(1.0), of(2.0), of(0.75), of(6.5)],
            [(1, 1), (2, 1), (3, 4), (13, 2)]
        );
        assert_eq!(of(0.3), (5_033_165, 1 << 24));
        for scale in [0.3f32, 0.7, 1.0 / 3.0, 123.456, 1e-3, 3e5] {
            assert_eq!(Ratio::of(scale).to_f64(), f64::from(scale));
        }
        of(f32::MIN_POSITIVE / 4.0);
        of(f32::MAX);
    }

    #[test]
    fn sizes_keep_the_aspect_ratio() {
        let half = Ratio { up: 3, down: 6 };
        assert_eq!([4, 5].map(|n| half.rounded(n).unwrap()), [2, 3], "ties go up");
        assert!(Ratio { up: 3, down: 0 }.rounded(4).is_err());
        assert_eq!(half.compare(&Ratio { up: 4, down: 7 }), Ordering::Less);
    }
}
