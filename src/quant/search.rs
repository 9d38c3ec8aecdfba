//! Search for the scale and bias with the least error.
//!
//! A group that contains or straddles zero is described by the distance of levels and the value of
//! zero, which determine both clipping limits. In other groups the bias is free.

use super::format::{Bits, half_above};
use super::grid;
use super::method::{Scratch, round_to_nearest};
use half::f16;

/// Scale and bias with the least error, the sum of `importance * |w - found|^P`, among about a
/// hundred candidates. These include `start`, the result of [`super::Method::Rtn`] and a grid that
/// contains the weights. `lo` and `hi` are the smallest and the largest weight, and differ. `None`
/// if no f16 scale spans them.
pub(super) fn least<const P: i32>(
    bits: Bits,
    weights: &[f32],
    importance: Option<&[f32]>,
    (lo, hi): (f32, f32),
    start: Option<(f16, f16)>,
    scratch: &mut Scratch,
) -> Option<(f16, f16)> {
    /// Share of the distance of `2^x` levels: a grid that fits this well is kept without further
    /// search.
    const NEAR: f32 = 1.0 / 32.0;
    let on_grid = grid::source(bits, weights, lo, hi, &mut scratch.sorted);
    let mut search = Search::<P> {
        bits,
        weights,
        importance: usable(importance, weights.len(), &mut scratch.importance),
        free: lo > 0.0 || hi < 0.0,
        best: None,
    };
    if let Some((scale, bias)) = on_grid {
        if search.largest(scale, bias) <= (hi - lo) / f32::from(bits.top()) * NEAR {
            return on_grid;
        }
        search.try_pair(scale, bias);
    }
    if let Some((scale, bias)) = start {
        search.try_pair(scale, bias);
    }
    search.start(lo, hi)?;
    search.spread(lo, hi);
    search.descend();
    search.best.map(|b| (b.scale, b.bias))
}

/// Importance without non-finite numbers, scaled to a maximum of 1; `None` if it carries no
/// information.
fn usable<'a>(given: Option<&[f32]>, count: usize, room: &'a mut Vec<f32>) -> Option<&'a [f32]> {
    let given = given.filter(|h| h.len() == count)?;
    room.clear();
    room.extend(given.iter().map(|h| if h.is_finite() { h.max(0.0) } else { 0.0 }));
    let most = room.iter().copied().fold(0.0, f32::max);
    if most == 0.0 {
        return None;
    }
    room.iter_mut().for_each(|h| *h /= most);
    Some(room)
}

/// The best scale and bias so far.
#[derive(Clone, Copy)]
struct Best {
    error: f64,
    scale: f16,
    bias: f16,
}

struct Search<'a, const P: i32> {
    bits: Bits,
    weights: &'a [f32],
    importance: Option<&'a [f32]>,
    /// True if zero need not be a level.
    free: bool,
    best: Option<Best>,
}

impl<const P: i32> Search<'_, P> {
    fn top(&self) -> f32 {
        f32::from(self.bits.top())
    }

    /// Safe candidates: no weight clipped beyond rounding, and the paper's rounding.
    fn start(&mut self, lo: f32, hi: f32) -> Option<()> {
        let step = self.bits.step();
        // The largest weight is on the last level or half a level above it.
        for span in [2.0 - step, 2.0 - step / 2.0].map(f64::from) {
            if self.free {
                let (scale, bias) = one_sided(lo, hi, span)?;
                self.try_pair(scale, bias);
            } else {
                let scale = half_above((f64::from(hi) - f64::from(lo)) / span)?;
                let zero = -lo / (scale.to_f32() * step);
                for zero in [zero.floor(), zero.ceil()] {
                    self.try_level(scale.to_f32() * step, zero);
                }
            }
        }
        if let Some((scale, bias)) = round_to_nearest(self.bits, lo, hi) {
            self.try_pair(scale, bias);
        }
        Some(())
    }

    /// Tries distances from no clipping down to a third of that, with clipping divided between the
    /// ends in several ways.
    fn spread(&mut self, lo: f32, hi: f32) {
        const RATIO: f32 = 0.92;
        const COUNT: usize = 14;
        let levels = self.top() + 1.0;
        let mut distance = (hi - lo) / (levels - 0.5);
        for _ in 0..COUNT {
            // Levels below zero that avoid clipping at the low end and at the high end.
            let (all_low, all_high) = (-lo / distance - 0.5, levels - 0.5 - hi / distance);
            for share in [0.5, 0.25, 0.75, 0.0, 1.0] {
                let zero = all_high + (all_low - all_high) * share;
                self.try_level(distance, zero);
                if (all_low - all_high).abs() < 0.5 {
                    break;
                }
            }
            distance *= RATIO;
        }
    }

    /// Moves in smaller and smaller steps from the best.
    fn descend(&mut self) {
        /// Share of a level by which the last steps move the outermost level.
        const FINE: f32 = 0.02;
        let mut by = 0.04;
        while by * self.top() / 2.0 > FINE {
            let Some((distance, zero)) = self.place() else {
                return;
            };
            let shift = if self.free { by * 10.0 } else { 1.0 };
            for factor in [1.0, 1.0 - by, 1.0 + by] {
                // Keeps the middle of the levels.
                let middle = self.top() / 2.0;
                let kept = middle - (middle - zero) / factor;
                for zero in [kept, kept - shift, kept + shift] {
                    self.try_level(distance * factor, zero);
                }
            }
            self.fit();
            by *= 0.5;
        }
    }

    /// Distance of levels and, in levels, the position of zero of the best.
    fn place(&self) -> Option<(f32, f32)> {
        let step = self.bits.step();
        self.best
            .map(|b| (b.scale.to_f32() * step, (b.bias.to_f32() - 2.0) / step))
    }

    /// Tries the distance that fits the quantized values of the best in least squares.
    fn fit(&mut self) {
        let Some((distance, zero)) = self.place() else {
            return;
        };
        let (mut wc, mut cc) = (0f64, 0f64);
        for (i, w) in self.weights.iter().enumerate() {
            let h = self.importance.map_or(1.0, |h| h[i]);
            let c = (w / distance + zero).round().clamp(0.0, self.top()) - zero;
            wc += f64::from(h * w * c);
            cc += f64::from(h * c * c);
        }
        let fitted = wc / cc;
        if fitted.is_finite() && fitted > 0.0 {
            #[expect(clippy::cast_possible_truncation, reason = "it is rounded to f16 next")]
            self.try_level(fitted as f32, zero);
        }
    }

    fn try_level(&mut self, distance: f32, zero: f32) {
        let step = self.bits.step();
        let scale = f16::from_f32(distance / step);
        let zero = if self.free {
            zero
        } else {
            zero.round().clamp(0.0, self.top())
        };
        self.try_pair(scale, f16::from_f32(2.0 + zero * step));
    }

    fn try_pair(&mut self, scale: f16, bias: f16) {
        if scale == f16::ZERO || !scale.is_finite() || !bias.is_finite() {
            return;
        }
        let step = self.bits.step();
        let (distance, zero) = (scale.to_f32() * step, (bias.to_f32() - 2.0) / step);
        // In units of levels, so that squares of tiny weights do not underflow.
        let unit = f64::from(distance).powi(P);
        let limit = self.best.map_or(f64::INFINITY, |b| b.error / unit);
        let levels = (1.0 / distance, zero, self.top());
        let error = match self.importance {
            Some(h) => sum::<P>(self.weights, levels, limit, |i| h[i]),
            None => sum::<P>(self.weights, levels, limit, |_| 1.0),
        };
        if error < limit {
            let error = error * unit;
            self.best = Some(Best { error, scale, bias });
        }
    }

    /// Largest error of a weight.
    fn largest(&self, scale: f16, bias: f16) -> f32 {
        let step = self.bits.step();
        let (distance, zero) = (scale.to_f32() * step, (bias.to_f32() - 2.0) / step);
        let off = |w: &f32| {
            let t = w / distance + zero;
            (t - t.round().clamp(0.0, self.top())).abs()
        };
        self.weights.iter().map(off).fold(0.0, f32::max) * distance
    }
}

/// Sum of errors in units of levels; if it exceeds `limit`, any number above `limit`.
fn sum<const P: i32>(
    weights: &[f32],
    (inverse, zero, top): (f32, f32, f32),
    limit: f64,
    importance: impl Fn(usize) -> f32,
) -> f64 {
    const LANES: usize = 8;
    const CHUNK: usize = 64;
    // Adding and subtracting this rounds to an integer, and vectorizes.
    const ROUND: f32 = 12_582_912.0;
    let error = |w: f32, h: f32| {
        let t = w * inverse + zero;
        let off = t - ((t.clamp(-1.0, top + 1.0) + ROUND) - ROUND).clamp(0.0, top);
        if P == 2 { h * off * off } else { h * off.abs() }
    };
    let mut total = 0f64;
    for (c, chunk) in weights.chunks(CHUNK).enumerate() {
        let first = c * CHUNK;
        let mut lanes = [0f32; LANES];
        let (whole, rest) = chunk.as_chunks::<LANES>();
        for (v, part) in whole.iter().enumerate() {
            for (l, lane) in lanes.iter_mut().enumerate() {
                *lane += error(part[l], importance(first + v * LANES + l));
            }
        }
        let last = first + whole.len() * LANES;
        total += f64::from(lanes.iter().sum::<f32>());
        total += rest
            .iter()
            .enumerate()
            .map(|(i, w)| f64::from(error(*w, importance(last + i))))
            .sum::<f64>();
        if total > limit {
            break;
        }
    }
    total
}

/// Scale and free bias of a group that does not straddle zero, with `w1` in `[2, 2 + span]`. The
/// farther the group is from zero relative to its range, the coarser the f16 bias; the scale grows
/// to make up for it.
fn one_sided(lo: f32, hi: f32, span: f64) -> Option<(f16, f16)> {
    // Beyond this, f16 is too coarse to position the interval.
    const FAR: f64 = 1024.0;
    let (lo, hi) = (f64::from(lo), f64::from(hi));
    let (range, peak) = (hi - lo, lo.abs().max(hi.abs()));
    let bound = peak * span / range + 2.0;
    let scale = if bound < FAR {
        let h = f16::from_f64(bound);
        range / (span - (f16::from_bits(h.to_bits() + 1).to_f64() - h.to_f64()))
    } else {
        (2.0 * peak / FAR).max(range / (span - 0.5))
    };
    let scale = half_above(scale)?;
    let s = scale.to_f64();
    let slack = (span - range / s).max(0.0);
    Some((scale, f16::from_f64(2.0 + slack / 2.0 - lo / s)))
}
