//! Classic 4-bit integer quantization, for comparison with E0M4.

use super::format::{Bits, QuantError, affine};
use super::method::{ColumnMethod, Scratch};
use super::packed::Column;
use half::f16;

/// A min-max asymmetric grid with an integer zero point: `2^x` levels from `min(w, 0)` to
/// `max(w, 0)`, `w = scale * (q - zero)`, with an f16 scale.
struct Int4Grid {
    scale: f32,
    zero: f32,
    top: f32,
}

impl Int4Grid {
    fn of(bits: Bits, weights: &[f32]) -> Self {
        let top = f32::from(bits.top());
        let (lo, hi) = weights
            .iter()
            .fold((0f32, 0f32), |(l, h), w| (l.min(*w), h.max(*w)));
        let scale = f16::from_f32((hi - lo) / top).to_f32();
        // If f16 cannot divide the range, all values are zero.
        let (scale, zero) = if scale == 0.0 {
            (0.0, 0.0)
        } else {
            (scale, (-lo / scale).round())
        };
        Self { scale, zero, top }
    }

    /// The level of a weight, an integer up to `top`.
    fn level(&self, w: f32) -> f32 {
        if self.scale == 0.0 {
            0.0
        } else {
            ((w / self.scale).round() + self.zero).clamp(0.0, self.top)
        }
    }
}

/// Sum of absolute errors of a group with 4-bit [`Integers`].
pub fn int4_error(weights: &[f32]) -> f64 {
    let grid = Int4Grid::of(Bits::Four, weights);
    let off = |w: &f32| f64::from((w - grid.scale * (grid.level(*w) - grid.zero)).abs());
    weights.iter().map(off).sum()
}

/// Min-max asymmetric integers with an integer zero point, which this layout holds exactly: `2^x`
/// levels from `min(w, 0)` to `max(w, 0)`. For comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Integers;

impl Integers {
    pub const NAME: &str = "int";
}

impl ColumnMethod for Integers {
    fn column(
        &self,
        bits: Bits,
        group: usize,
        weights: &[f32],
        _scratch: &mut Scratch,
        out: &mut Column,
    ) -> Result<(), QuantError> {
        for part in weights.chunks(group) {
            let grid = Int4Grid::of(bits, part);
            let found = affine(bits, f64::from(grid.scale), f64::from(grid.zero))?;
            out.scales.push([found.scale, found.bias]);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "clamped to the valid range"
            )]
            out.codes.extend(part.iter().map(|w| grid.level(*w) as u8));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Loss, Packed};

    #[test]
    fn the_format_holds_them() {
        let weights: Vec<f32> = (0..256).map(|i| (i as f32 * 0.7).sin() * 0.1 - 0.02).collect();
        let loss = |bits| -> Loss {
            Packed::from_columns(bits, 32, 128, &weights, &Integers)
                .unwrap()
                .1
        };
        let wanted: f64 = weights.chunks(32).map(int4_error).sum();
        assert!((loss(Bits::Four).absolute / wanted - 1.0).abs() < 1e-5);
        assert!(loss(Bits::Eight).absolute < wanted / 10.0);
        let constant = Packed::from_columns(Bits::Four, 16, 16, &[0.0; 32], &Integers).unwrap();
        assert_eq!(constant.1.max, 0.0);
    }

    #[test]
    fn levels_are_exact_and_others_round() {
        let weights: Vec<f32> = (0..16).map(|q| 0.5 * (q as f32 - 6.0)).collect();
        assert_eq!(int4_error(&weights), 0.0);
        assert_eq!(int4_error(&[0.0, 15.0, 7.25]), 0.25);
        assert_eq!(int4_error(&[0.0; 4]), 0.0);
        // Zero stays a level where no weight is near it.
        assert_eq!(int4_error(&[16.0, 30.0]), 0.0);
        assert_eq!(int4_error(&[1e-9, -1e-9]), f64::from(1e-9f32) * 2.0);
    }
}
