//! The elements and weights that contribute to each position along an axis.

use super::ratio::{Line, Ratio};
use super::{Axis, Coordinates, Mode, Nearest, Resize};
use crate::graph::op::{OpResult, filled};
use crate::num;
use crate::shape::Dim;
use std::cmp::Ordering;

/// Elements and weights for every position of the result, the same number for each.
#[derive(Debug)]
pub(super) struct Taps {
    width: usize,
    items: Vec<(usize, f32)>,
    inside: Vec<bool>,
}

impl Taps {
    pub(super) fn len(&self) -> usize {
        self.inside.len()
    }

    /// Elements and weights of a position.
    pub(super) fn of(&self, place: usize) -> impl Iterator<Item = (usize, f32)> + '_ {
        self.items
            .iter()
            .skip(place * self.width)
            .take(self.width)
            .copied()
            .filter(|t| t.1 != 0.0)
    }

    /// The first element of a position.
    pub(super) fn first(&self, place: usize) -> usize {
        self.items[place * self.width].0
    }

    /// True if each position copies one element.
    pub(super) fn is_pick(&self) -> bool {
        self.width == 1 && !self.leaves_operand()
    }

    /// True if some position is outside the operand and gets the outside value.
    pub(super) fn leaves_operand(&self) -> bool {
        self.inside.contains(&false)
    }

    /// True if the position uses elements of the operand.
    pub(super) fn is_inside(&self, place: usize) -> bool {
        self.inside.get(place).copied().unwrap_or(true)
    }
}

/// A position in the operand: `low + part`, where `part` is at least 0 and less than 1.
#[derive(Clone, Copy, Debug)]
struct Position {
    low: i64,
    part: f64,
    /// How `part` compares with one half, exactly.
    half: Ordering,
}

impl Position {
    #[expect(clippy::cast_possible_truncation, reason = "positions are near the operand")]
    fn of(x: f64) -> Self {
        let part = x - x.floor();
        Self {
            low: x.floor() as i64,
            part,
            half: part.total_cmp(&0.5),
        }
    }

    /// The position `over / unit`.
    #[expect(clippy::cast_precision_loss, reason = "the fraction is rounded once")]
    fn fraction(over: i128, unit: i128) -> OpResult<Self> {
        let unit = unit.max(1);
        let (low, rest) = (over.div_euclid(unit), over.rem_euclid(unit));
        Ok(Self {
            low: num::exact(low, "a coordinate")?,
            part: rest as f64 / unit as f64,
            half: (2 * rest).cmp(&unit),
        })
    }
}

impl Resize {
    /// The positions in the operand of all results along an axis.
    fn positions(&self, a: &Axis) -> OpResult<Vec<Position>> {
        if a.out == 0 {
            return Ok(Vec::new());
        }
        let (size, out) = (Dim::from_usize(a.size), Dim::from_usize(a.out));
        if self.coordinates == Coordinates::TfCropAndResize {
            return Ok((0..a.out).map(|i| Position::of(in_region(a, i))).collect());
        }
        if a.out == 1
            && matches!(
                self.coordinates,
                Coordinates::PytorchHalfPixel | Coordinates::AlignCorners
            )
        {
            return Ok(vec![Position::of(0.0)]);
        }
        let line = Line::of(self.coordinates, &a.scale.dims(), &size, &out)?;
        let number = |d: &Dim| i128::from(d.as_const().unwrap_or_default());
        let (step, first, unit) = (number(&line.step), number(&line.first), number(&line.unit));
        let mut all = Vec::with_capacity(a.out);
        let mut over = first;
        for _ in 0..a.out {
            all.push(Position::fraction(over, unit)?);
            over += step;
        }
        Ok(all)
    }

    /// The taps of every position along an axis of at least one element.
    pub(super) fn taps(&self, a: &Axis) -> OpResult<Taps> {
        let last = num::signed(a.size.saturating_sub(1));
        let shrinks = self.antialias && a.scale.shrinks() && a.scale.up > 0;
        let stretch = if shrinks { 1.0 / a.scale.to_f64() } else { 1.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the size"
        )]
        let width = match self.mode {
            Mode::Nearest(_) => 1,
            Mode::Linear if shrinks => 2 * (stretch.ceil() as usize).min(a.size + 1) + 1,
            Mode::Cubic if shrinks => 2 * ((2.0 * stretch).ceil() as usize).min(a.size + 1) + 1,
            Mode::Linear => 2,
            Mode::Cubic => 4,
        };
        let mut taps = Taps {
            width,
            items: filled(&[a.out, width], (0, 0.0))?,
            inside: filled(&[a.out], true)?,
        };
        let positions = self.positions(a)?;
        let places = taps.items.chunks_exact_mut(width).zip(&mut taps.inside);
        for ((items, inside), mut x) in places.zip(positions) {
            if self.coordinates == Coordinates::TfCropAndResize {
                let within = (0..last).contains(&x.low) && x.part < 1.0;
                *inside = within || x.low == last && x.part == 0.0;
            }
            if let (Mode::Nearest(rule), [item]) = (self.mode, &mut *items) {
                let at = nearest(rule, x, a.scale).clamp(0, last);
                *item = (num::exact(at, "an index")?, 1.0);
                continue;
            }
            if self.mode == Mode::Linear && !shrinks && !(0..last).contains(&x.low) {
                // Outside, the outermost element is used.
                (x.low, x.part) = (x.low.clamp(0, last), 0.0);
            }
            self.weights(x, stretch, a.size, items)?;
        }
        Ok(taps)
    }

    /// Fills `items` with the neighbours of `x` and weights that sum to 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "an index near the operand"
    )]
    fn weights(&self, x: Position, stretch: f64, size: usize, items: &mut [(usize, f32)]) -> OpResult<()> {
        let last = num::signed(size) - 1;
        let count = num::signed(items.len());
        let mut sum = 0f64;
        let mut weights = Vec::with_capacity(items.len());
        for (offset, item) in (-(count - 1) / 2..).zip(items.iter_mut()) {
            let at = x.low.saturating_add(offset);
            let distance = (x.part - offset as f64).abs() / stretch;
            let mut weight = match self.mode {
                Mode::Cubic => keys(f64::from(self.cubic), distance),
                _ => (1.0 - distance).max(0.0),
            };
            if self.exclude_outside && !(0..=last).contains(&at) {
                weight = 0.0;
            }
            sum += weight;
            weights.push(weight);
            item.0 = num::exact(at.clamp(0, last), "an index")?;
        }
        let sum = if sum == 0.0 { 1.0 } else { sum };
        for (item, weight) in items.iter_mut().zip(weights) {
            item.1 = (weight / sum) as f32;
        }
        Ok(())
    }
}

/// The coordinate of result `i` in a region of the operand.
#[expect(clippy::cast_precision_loss, reason = "indices are small")]
fn in_region(a: &Axis, i: usize) -> f64 {
    let (start, end) = (f64::from(a.region.0), f64::from(a.region.1));
    let last = a.size as f64 - 1.0;
    if a.out > 1 {
        start * last + i as f64 * (end - start) * last / (a.out - 1) as f64
    } else {
        0.5 * (start + end) * last
    }
}

/// The nearest element to `x`, which may be outside the operand.
fn nearest(rule: Nearest, x: Position, scale: Ratio) -> i64 {
    let up = match rule {
        Nearest::RoundPreferFloor => x.half.is_gt(),
        Nearest::RoundPreferCeil => x.half.is_ge(),
        Nearest::Ceil => x.part > 0.0,
        Nearest::Simple => scale.shrinks() && x.part > 0.0,
        Nearest::Floor => false,
    };
    x.low.saturating_add(i64::from(up))
}

#[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
pub(crate) fn cubic(a: f32, d: f32) -> f32 {
    keys(f64::from(a), f64::from(d)) as f32
}

/// The cubic convolution kernel with parameter `a` (Keys, 1981).
fn keys(a: f64, d: f64) -> f64 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
