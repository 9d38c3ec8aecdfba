//! Weights that already lie on a uniform grid, such as those of a quantized checkpoint. They keep
//! it instead of being quantized twice.

use super::format::Bits;
use half::f16;

/// Scale and bias of a uniform grid that contains all weights, if there is one.
pub(super) fn source(
    bits: Bits,
    weights: &[f32],
    lo: f32,
    hi: f32,
    sorted: &mut Vec<f32>,
) -> Option<(f16, f16)> {
    // Share of a level; the weights carry rounding errors of the arithmetic that made them.
    const TOLERANCE: f32 = 1.0 / 64.0;
    sorted.clear();
    sorted.extend_from_slice(weights);
    sorted.sort_unstable_by(f32::total_cmp);
    let range = hi - lo;
    let most = f32::from(bits.top());
    let mut gap = range;
    for pair in sorted.windows(2) {
        let d = pair[1] - pair[0];
        if d > range / most * 0.01 {
            gap = gap.min(d);
        }
    }
    let mut parts = 1.0f32;
    while range / (gap / parts) <= most + TOLERANCE {
        let count = (range / (gap / parts)).round();
        let distance = range / count;
        let on_grid = sorted.iter().all(|w| {
            let q = (w - lo) / distance;
            (q - q.round()).abs() < TOLERANCE / 2.0
        });
        if on_grid {
            return half_grid(bits, lo, distance, count, sorted.contains(&0.0));
        }
        parts += 1.0;
    }
    None
}

/// Scale and bias of the grid `lo + q * distance` for `q` up to `count`, if f16 can represent them.
fn half_grid(bits: Bits, lo: f32, distance: f32, count: f32, holds_zero: bool) -> Option<(f16, f16)> {
    /// Share of a level by which the grid may grow in total.
    const GROWTH: f32 = 1.0 / 64.0;
    /// Share of a level by which it may be shifted; and the shift below which no finer grid is
    /// tried.
    const SHIFT: (f32, f32) = (1.0 / 8.0, 1.0 / 64.0);
    let step = bits.step();
    let mut best: Option<(f32, (f16, f16))> = None;
    // A finer grid contains this one, and f16 represents its bias more accurately.
    let mut fine = 1.0;
    while count * fine <= f32::from(bits.top()) {
        let wanted = distance / fine / step;
        let scale = f16::from_f32(wanted);
        let s = scale.to_f32();
        if !scale.is_normal() || ((wanted / s - 1.0) * count * fine).abs() > GROWTH {
            break;
        }
        let mut bias = 2.0 - lo / s;
        if holds_zero {
            bias = (bias / step).round() * step;
        }
        let rounded = f16::from_f32(bias);
        let shift = (rounded.to_f32() - bias).abs();
        if shift <= step * SHIFT.0 && best.is_none_or(|(least, _)| shift * s < least) {
            best = Some((shift * s, (scale, rounded)));
        }
        if shift <= step * SHIFT.1 {
            break;
        }
        fine *= 2.0;
    }
    best.map(|(_, found)| found)
}
