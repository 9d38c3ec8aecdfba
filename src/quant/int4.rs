//! The classic 4-bit integers that E0M4 is compared with.

use half::f16;

/// Sum of the absolute errors of a group in min-max asymmetric INT4 with an integer zero point: 16 levels from `min(w, 0)` to
/// `max(w, 0)`, the scale a half, `w = scale * (q - z)`.
pub fn int4_error(weights: &[f32]) -> f64 {
    let (lo, hi) = weights
        .iter()
        .fold((0f32, 0f32), |(l, h), w| (l.min(*w), h.max(*w)));
    let scale = f16::from_f32((hi - lo) / 15.0).to_f32();
    if scale == 0.0 {
        return weights.iter().map(|w| f64::from(w.abs())).sum();
    }
    let zero = (-lo / scale).round();
    let off = |w: &f32| {
        let q = ((w / scale).round() + zero).clamp(0.0, 15.0);
        f64::from((w - scale * (q - zero)).abs())
    };
    weights.iter().map(off).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

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
