//! The elements and weights that contribute to each position along an axis.

use super::{Axis, Coordinates, Mode, Nearest, Resize};
use crate::graph::op::{OpResult, filled};
use crate::num;

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
        self.items.get(place * self.width).map_or(0, |t| t.0)
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

impl Resize {
    /// Coordinate of the center of position `i` in the operand.
    #[expect(clippy::cast_precision_loss, reason = "ONNX computes coordinates in f32")]
    fn coordinate(&self, a: &Axis, i: usize) -> f32 {
        let (x, size, out) = (i as f32, a.size as f32, a.out as f32);
        match self.coordinates {
            Coordinates::PytorchHalfPixel if a.out <= 1 => 0.0,
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => (x + 0.5) / a.scale - 0.5,
            Coordinates::HalfPixelSymmetric => {
                let adjustment = out / (a.scale * size);
                let offset = size / 2.0 * (1.0 - adjustment);
                offset + (x + 0.5) / a.scale - 0.5
            }
            Coordinates::AlignCorners if a.out <= 1 => 0.0,
            Coordinates::AlignCorners => x * (size - 1.0) / (out - 1.0),
            Coordinates::Asymmetric => x / a.scale,
            Coordinates::TfHalfPixelForNn => (x + 0.5) / a.scale,
            Coordinates::TfCropAndResize => {
                let (start, end) = a.region;
                if a.out > 1 {
                    start * (size - 1.0) + x * (end - start) * (size - 1.0) / (out - 1.0)
                } else {
                    0.5 * (start + end) * (size - 1.0)
                }
            }
        }
    }

    /// The taps of every position along an axis of at least one element.
    pub(super) fn taps(&self, a: &Axis) -> OpResult<Taps> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are small")]
        let last = a.size.saturating_sub(1) as f32;
        let shrinks = self.antialias && a.scale < 1.0 && a.scale > 0.0;
        let stretch = if shrinks { 1.0 / a.scale } else { 1.0 };
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
        for (i, (items, inside)) in taps
            .items
            .chunks_exact_mut(width)
            .zip(&mut taps.inside)
            .enumerate()
        {
            let mut x = self.coordinate(a, i);
            if self.coordinates == Coordinates::TfCropAndResize {
                *inside = x >= 0.0 && x <= last;
            }
            if let (Mode::Nearest(rule), [item]) = (self.mode, &mut *items) {
                *item = (nearest(rule, x, a.scale, a.size), 1.0);
                continue;
            }
            if self.mode == Mode::Linear && !shrinks {
                // Outside, the outermost element is used.
                x = x.clamp(0.0, last);
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
    fn weights(&self, x: f32, stretch: f32, size: usize, items: &mut [(usize, f32)]) -> OpResult<()> {
        let last = num::signed(size) - 1;
        let count = num::signed(items.len());
        let first = x.floor() as i64 - (count - 1) / 2;
        let mut sum = 0f64;
        for (at, item) in (first..).zip(items.iter_mut()) {
            let distance = (x - at as f32).abs() / stretch;
            let mut weight = match self.mode {
                Mode::Cubic => cubic(self.cubic, distance),
                _ => (1.0 - distance).max(0.0),
            };
            if self.exclude_outside && !(0..=last).contains(&at) {
                weight = 0.0;
            }
            sum += f64::from(weight);
            *item = (num::exact(at.clamp(0, last), "an index")?, weight);
        }
        if sum != 0.0 {
            for item in items {
                item.1 = (f64::from(item.1) / sum) as f32;
            }
        }
        Ok(())
    }
}

/// The nearest element to `x`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most the size"
)]
fn nearest(rule: Nearest, x: f32, scale: f32, size: usize) -> usize {
    let at = match rule {
        Nearest::RoundPreferFloor if x.fract().abs() == 0.5 => x.floor(),
        Nearest::RoundPreferFloor => x.round(),
        Nearest::RoundPreferCeil if x.fract().abs() == 0.5 => x.ceil(),
        Nearest::RoundPreferCeil => x.round(),
        Nearest::Ceil => x.ceil(),
        Nearest::Simple if scale < 1.0 => x.ceil(),
        Nearest::Floor | Nearest::Simple => x.floor(),
    };
    (at.max(0.0) as usize).min(size.saturating_sub(1))
}

/// The cubic convolution kernel with parameter `a` (Keys, 1981).
pub(crate) fn cubic(a: f32, d: f32) -> f32 {
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a
    } else {
        0.0
    }
}
