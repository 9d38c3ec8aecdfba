//! The elements and weights that contribute to each position along an axis.

use super::ratio::Line;
use super::{Axis, Coordinates, Mode, Resize};
use crate::graph::op::{OpResult, filled};
use crate::shape::Dim;
use crate::tensor::resample::{self, Positions};

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

impl Resize {
    /// The positions in the operand of all results along an axis.
    fn positions(&self, a: &Axis) -> OpResult<Positions> {
        if self.coordinates == Coordinates::TfCropAndResize {
            return Ok(Positions::Region {
                bounds: a.region,
                out: a.out,
            });
        }
        let one_is_first = matches!(
            self.coordinates,
            Coordinates::PytorchHalfPixel | Coordinates::AlignCorners
        );
        if a.out == 0 || a.out == 1 && one_is_first {
            return Ok(Positions::FIRST);
        }
        let (size, out) = (Dim::from_usize(a.size), Dim::from_usize(a.out));
        let line = Line::of(self.coordinates, &a.scale.dims(), &size, &out)?;
        let number = |d: &Dim| i128::from(d.as_const().unwrap_or_default());
        Ok(Positions::Line {
            step: number(&line.step),
            first: number(&line.first),
            unit: number(&line.unit),
        })
    }

    /// The taps of every position along an axis of at least one element.
    pub(super) fn taps(&self, a: &Axis) -> OpResult<Taps> {
        let shrinks = self.antialias && a.scale.shrinks() && a.scale.up > 0;
        let stretch = if shrinks { 1.0 / a.scale.to_f64() } else { 1.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most the size"
        )]
        let width = match self.mode {
            Mode::Linear if shrinks => 2 * (stretch.ceil() as usize).min(a.size + 1) + 1,
            Mode::Cubic if shrinks => 2 * ((2.0 * stretch).ceil() as usize).min(a.size + 1) + 1,
            mode => mode.taps(),
        };
        let axis = resample::Axis {
            size: a.size,
            positions: self.positions(a)?,
            mode: self.mode,
            cubic: self.cubic,
            inside_only: self.exclude_outside,
            shrinks: a.scale.shrinks(),
            stretch,
        };
        let mut taps = Taps {
            width,
            items: filled(&[a.out, width], (0, 0.0))?,
            inside: filled(&[a.out], true)?,
        };
        let mut found = filled(&[width], (0, 0f64))?;
        let places = taps.items.chunks_exact_mut(width).zip(&mut taps.inside);
        for (i, (items, inside)) in places.enumerate() {
            *inside = axis.taps(i, &mut found);
            for (item, (element, weight)) in items.iter_mut().zip(&found) {
                #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
                let weight = *weight as f32;
                *item = (*element, weight);
            }
        }
        Ok(taps)
    }
}
