//! Elements and weights that make a result when an axis is resampled, for the reference and for the
//! CPU kernels.

use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Sub};

/// How elements make a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One element along each axis.
    Nearest(Nearest),
    /// Two elements along each axis.
    Linear,
    /// Four elements along each axis.
    Cubic,
}

impl Mode {
    /// Elements along an axis.
    pub const fn taps(self) -> usize {
        match self {
            Self::Nearest(_) => 1,
            Self::Linear => 2,
            Self::Cubic => 4,
        }
    }
}

/// Rounding to the nearest element. Kernels know these by their numbers, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nearest {
    /// Down.
    Floor,
    /// Up.
    Ceil,
    /// Ties go down.
    RoundPreferFloor,
    /// Ties go up.
    RoundPreferCeil,
    /// Up along an axis that shrinks, else down: opset 10 and before.
    Simple,
}

impl Nearest {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Floor,
        Self::Ceil,
        Self::RoundPreferFloor,
        Self::RoundPreferCeil,
        Self::Simple,
    ];
}

/// The type of weights: `f32` in kernels, `f64` in the reference.
pub trait Weight:
    Copy
    + PartialOrd
    + From<f32>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest number of this type.
    fn of(v: f64) -> Self;
}

impl Weight for f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
    fn of(v: f64) -> Self {
        v as Self
    }
}

impl Weight for f64 {
    fn of(v: f64) -> Self {
        v
    }
}

/// The cubic convolution kernel with parameter `a` at distance `d` (Keys, 1981).
#[inline]
pub fn cubic<F: Weight>(a: F, d: F) -> F {
    let [one, two, three, four, five, eight] = [1.0, 2.0, 3.0, 4.0, 5.0, 8.0].map(F::from);
    if d <= one {
        ((a + two) * d - (a + three)) * d * d + one
    } else if d < two {
        ((a * d - five * a) * d + eight * a) * d - four * a
    } else {
        F::from(0.0)
    }
}

/// The positions of results in an axis of the operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Positions {
    /// That of result `i` is exactly `(i * step + first) / unit`.
    Line {
        /// 0 or more.
        step: i128,
        /// The numerator of the first position.
        first: i128,
        /// 1 or more.
        unit: i128,
    },
    /// `out` results across a part of the axis or beyond it. Results outside the axis use no
    /// elements.
    Region {
        /// Start and end, as parts of the axis.
        bounds: (f32, f32),
        /// Number of results.
        out: usize,
    },
}

impl Positions {
    /// All at 0.
    pub const FIRST: Self = Self::Line {
        step: 0,
        first: 0,
        unit: 1,
    };
    /// Each at the element of the same index.
    pub const SAME: Self = Self::Line {
        step: 1,
        first: 0,
        unit: 1,
    };
}

/// A position in the operand: `low + part`, where `part` is at least 0 and less than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Position {
    low: i128,
    part: f64,
    /// How `part` compares with one half, exactly.
    half: Ordering,
}

/// An axis of at least one element that is resampled.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Number of elements.
    pub size: usize,
    /// Positions of the results.
    pub positions: Positions,
    /// How elements make a result.
    pub mode: Mode,
    /// The parameter of cubic interpolation.
    pub cubic: f32,
    /// Elements outside have weight 0.
    pub inside_only: bool,
    /// There are fewer results than elements.
    pub shrinks: bool,
    /// Distances are divided by this, which is 1 unless more elements make a result.
    pub stretch: f64,
}

impl Axis {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "a fraction is rounded once; positions are near the operand"
    )]
    fn position(&self, i: usize) -> Position {
        match self.positions {
            Positions::Line { step, first, unit } => {
                let (over, unit) = (i as i128 * step + first, unit.max(1));
                let rest = over.rem_euclid(unit);
                Position {
                    low: over.div_euclid(unit),
                    part: rest as f64 / unit as f64,
                    half: (2 * rest).cmp(&unit),
                }
            }
            Positions::Region { bounds, out } => {
                let (start, end) = (f64::from(bounds.0), f64::from(bounds.1));
                let last = self.size as f64 - 1.0;
                let x = if out > 1 {
                    start * last + i as f64 * (end - start) * last / (out - 1) as f64
                } else {
                    0.5 * (start + end) * last
                };
                let part = x - x.floor();
                Position {
                    low: x.floor() as i128,
                    part,
                    half: part.total_cmp(&0.5),
                }
            }
        }
    }

    /// Whether the element nearest to `x` is the one above it, not the one below.
    fn is_up(&self, rule: Nearest, x: Position) -> bool {
        match rule {
            Nearest::RoundPreferFloor => x.half.is_gt(),
            Nearest::RoundPreferCeil => x.half.is_ge(),
            Nearest::Ceil => x.part > 0.0,
            Nearest::Simple => self.shrinks && x.part > 0.0,
            Nearest::Floor => false,
        }
    }

    /// Writes the elements that make result `i`, and their weights, which sum to 1. `taps` has
    /// [`Mode::taps`] places, or more with a stretch. False if the result is outside the operand.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "offsets are small, and elements are inside the axis"
    )]
    pub fn taps<F: Weight>(&self, i: usize, taps: &mut [(usize, F)]) -> bool {
        let (zero, one) = (F::from(0.0), F::from(1.0));
        let last = (self.size as i128 - 1).max(0);
        let mut x = self.position(i);
        let within = (0..last).contains(&x.low) && x.part < 1.0 || x.low == last && x.part == 0.0;
        if let Mode::Nearest(rule) = self.mode {
            let at = x.low.saturating_add(self.is_up(rule, x).into());
            taps.fill((at.clamp(0, last) as usize, one));
        } else {
            if taps.len() == 2 && !(0..last).contains(&x.low) {
                // Outside, the outermost element is used.
                (x.low, x.part) = (x.low.clamp(0, last), 0.0);
            }
            let mut sum = zero;
            let first = -(taps.len() as i128 - 1) / 2;
            for (offset, tap) in (first..).zip(taps.iter_mut()) {
                let at = x.low.saturating_add(offset);
                let distance = F::of((x.part - offset as f64).abs() / self.stretch);
                let weight = match self.mode {
                    _ if self.inside_only && !(0..=last).contains(&at) => zero,
                    Mode::Cubic => cubic(F::from(self.cubic), distance),
                    _ if distance < one => one - distance,
                    _ => zero,
                };
                sum = sum + weight;
                *tap = (at.clamp(0, last) as usize, weight);
            }
            let sum = if sum == zero { one } else { sum };
            for (_, weight) in taps {
                *weight = *weight / sum;
            }
        }
        within || matches!(self.positions, Positions::Line { .. })
    }
}

/// Samples outside an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Elements outside are 0.
    Zeros,
    /// They are those at the border.
    Border,
    /// They are the elements mirrored.
    Reflection,
}

/// Samples an axis of an image at coordinates from -1 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// Neighbours of a position: 1 (nearest), 2 (linear) or 4 (cubic).
    pub taps: usize,
    /// Elements outside.
    pub padding: Padding,
    /// -1 and 1 are the centers of the outermost elements, not their borders.
    pub corners: bool,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "an index near the operand"
)]
impl Sampler {
    /// Neighbours of the coordinate `v` along an axis of `size` elements, `None` if outside, and
    /// their weights. `cubic` is the weight of element `low + offset` at position `x`, given `x`,
    /// `low` and `offset`. Only the first `taps` have a meaning.
    #[inline]
    pub fn neighbours(
        &self,
        v: f32,
        size: usize,
        cubic: impl Fn(f32, f32, f32) -> f32,
    ) -> [(Option<usize>, f32); 4] {
        let n = size as f32;
        let mut x = if self.corners {
            (v + 1.0) / 2.0 * (n - 1.0)
        } else {
            ((v + 1.0) * n - 1.0) / 2.0
        };
        if !x.is_finite() {
            x = -2.0;
        }
        // Cubic interpolation pads each neighbour; the other modes pad the position itself.
        if self.taps != 4 {
            x = match self.padding {
                Padding::Zeros => x.clamp(-2.0, n + 1.0),
                Padding::Border => x.clamp(0.0, n - 1.0),
                Padding::Reflection => self.reflect(x, n),
            };
        }
        let (low, none) = (x.floor(), (0.0, 0.0));
        let all = match self.taps {
            1 => [(x.round_ties_even(), 1.0), none, none, none],
            2 => [(low, 1.0 - (x - low)), (low + 1.0, x - low), none, none],
            _ => [-1.0, 0.0, 1.0, 2.0].map(|i| (low + i, cubic(x, low, i))),
        };
        all.map(|(at, weight)| {
            let at = match self.padding {
                Padding::Zeros => at,
                Padding::Border => at.clamp(0.0, n - 1.0),
                Padding::Reflection => self.reflect(at, n).round(),
            };
            let at = usize::try_from(at as i64).ok();
            (at.filter(|at| *at < size), weight)
        })
    }

    /// Mirrors `x` at the centers or borders of the outermost of `n` elements until it is inside,
    /// then clamps it to the elements.
    fn reflect(&self, x: f32, n: f32) -> f32 {
        let (low, high) = if self.corners {
            (0.0, n - 1.0)
        } else {
            (-0.5, n - 0.5)
        };
        let span = high - low;
        if span <= 0.0 {
            return 0.0;
        }
        let at = (x - low).rem_euclid(2.0 * span);
        (low + at.min(2.0 * span - at)).clamp(0.0, n - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_known_values() {
        let line = |step, first, unit| Axis {
            size: 50,
            positions: Positions::Line { step, first, unit },
            mode: Mode::Linear,
            cubic: -0.75,
            inside_only: false,
            shrinks: true,
            stretch: 1.0,
        };
        let at = line(100, 0, 30).position(3);
        assert_eq!((at.low, at.part), (10, 0.0), "3 * 50 / 15, exactly");
        let half_pixel = line(60, 21, 18);
        let at = half_pixel.position(1);
        assert_eq!((at.low, at.part, at.half), (4, 0.5, Ordering::Equal));
        assert_eq!(
            Nearest::ALL.map(|rule| half_pixel.is_up(rule, at)),
            [false, true, false, true, true]
        );
        assert_eq!(line(9, -4, 18).position(0).low, -1);
        let region = |bounds| Axis {
            positions: Positions::Region { bounds, out: 15 },
            mode: Mode::Nearest(Nearest::Ceil),
            ..half_pixel
        };
        let at = region((0.25, 0.75)).position(7);
        assert_eq!((at.low, at.part), (24, 0.5));
        let mut taps = [(0, 0f32)];
        let inside = [0, 7, 14].map(|i| (region((-1.0, 2.0)).taps(i, &mut taps), taps[0].0));
        assert_eq!(inside, [(false, 0), (true, 25), (false, 49)]);
    }
}
