//! Methods: from weights to scale, bias and codes.

use super::format::{Bits, QuantError, encode, half_above};
use super::packed::Column;
use super::search;
use half::f16;

/// How scale and bias of a group are chosen. The codes are the nearest then ([`encode`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// The paper's rounding: all weights and zero inside the interval, the bias's low bits cleared.
    ///
    /// `[min(w, 0), max(w, 0)]` is mapped to `[2, 4 - eps]`, where eps is the distance of halves there, 2^-9: the scale is
    /// the smallest half not below the range divided by `2 - eps`, the bias `2 - min / scale` with all but its highest x fraction bits
    /// cleared. The paper's range need not hold zero; here it does, so that the bias is in the interval and zero is
    /// exact. Importance of inputs is ignored.
    Rtn,
    /// Least squared error, over both clip ends and the position of zero. A uniform grid on which the weights lie already is
    /// kept; constant groups are as exact as halves can tell them.
    #[default]
    Mse,
    /// As [`Method::Mse`], with the least absolute error.
    Mae,
}

impl Method {
    /// All methods with their names.
    pub const NAMES: [(&'static str, Self); 3] = [("rtn", Self::Rtn), ("mse", Self::Mse), ("mae", Self::Mae)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, m)| *m == self)
            .map_or("", |(n, _)| n)
    }

    /// Scale and bias for a group of finite weights; zero is exact in every group that holds or straddles it, but one whose weights lie
    /// on a grid that does not hold zero. `importance` is that of each weight's input, as the mean of its squares: the errors of
    /// the weights count in proportion. An error where a half cannot hold the scale.
    pub fn fit(
        self,
        bits: Bits,
        weights: &[f32],
        importance: Option<&[f32]>,
        scratch: &mut Scratch,
    ) -> Result<(f16, f16), QuantError> {
        let (lo, hi) = weights
            .iter()
            .fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), w| {
                (l.min(*w), h.max(*w))
            });
        let found = if weights.is_empty() {
            constant(0.0)
        } else {
            match self {
                Self::Rtn => round_to_nearest(bits, lo, hi),
                _ if lo == hi => constant(lo),
                Self::Mse => search::least::<2>(bits, weights, importance, (lo, hi), None, scratch),
                // Absolute errors have more local minima: what has the least squares is one to begin with.
                Self::Mae => {
                    search::least::<2>(bits, weights, importance, (lo, hi), None, scratch).and_then(|start| {
                        search::least::<1>(bits, weights, importance, (lo, hi), Some(start), scratch)
                    })
                }
            }
        };
        found.ok_or_else(|| QuantError::Range {
            range: format!("{lo:e} to {hi:e}"),
        })
    }
}

/// Room that methods work in.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(super) sorted: Vec<f32>,
    pub(super) importance: Vec<f32>,
}

/// Makes a quantized column of a column of weights: what a method is to the rest of the engine.
pub trait ColumnMethod: Sync {
    /// Appends a pair of scale and bias for each `group` weights along K, of which the last may be short, and a code for each weight, to the
    /// empty `out`. The weights are finite.
    fn column(
        &self,
        bits: Bits,
        group: usize,
        weights: &[f32],
        scratch: &mut Scratch,
        out: &mut Column,
    ) -> Result<(), QuantError>;

    /// Makes columns of `k` weights each, given one after the other, and hands them to `take` in their order. Equal to
    /// [`ColumnMethod::column`] for each; a method that gains by it takes them together.
    fn columns(
        &self,
        bits: Bits,
        group: usize,
        k: usize,
        columns: &[f32],
        scratch: &mut Scratch,
        take: &mut dyn FnMut(&Column) -> Result<(), QuantError>,
    ) -> Result<(), QuantError> {
        let mut made = Column::default();
        for column in columns.chunks_exact(k) {
            made.scales.clear();
            made.codes.clear();
            self.column(bits, group, column, scratch, &mut made)?;
            take(&made)?;
        }
        Ok(())
    }
}

/// Each group for itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGroup<'a> {
    /// How.
    pub method: Method,
    /// Mean square of each input, K of them; all count alike where it is `None`. Zeros and numbers that are not finite count as nothing.
    pub importance: Option<&'a [f32]>,
}

impl From<Method> for ByGroup<'_> {
    fn from(method: Method) -> Self {
        Self {
            method,
            importance: None,
        }
    }
}

impl ColumnMethod for ByGroup<'_> {
    fn column(
        &self,
        bits: Bits,
        group: usize,
        weights: &[f32],
        scratch: &mut Scratch,
        out: &mut Column,
    ) -> Result<(), QuantError> {
        for (g, part) in weights.chunks(group).enumerate() {
            let first = g * group;
            let importance = self.importance.and_then(|h| h.get(first..first + part.len()));
            let (scale, bias) = self.method.fit(bits, part, importance, scratch)?;
            out.scales.push([scale, bias]);
            out.codes
                .extend(part.iter().map(|w| encode(bits, scale, bias, *w)));
        }
        Ok(())
    }
}

/// See [`Method::Rtn`].
pub(super) fn round_to_nearest(bits: Bits, lo: f32, hi: f32) -> Option<(f16, f16)> {
    const EPS: f64 = 1.0 / 512.0;
    let (lo, hi) = (f64::from(lo.min(0.0)), f64::from(hi.max(0.0)));
    if lo == hi {
        return constant(0.0);
    }
    let scale = half_above((hi - lo) / (2.0 - EPS))?;
    let step = f64::from(bits.step());
    let bias = ((2.0 - lo / scale.to_f64()) / step).floor() * step;
    Some((scale, f16::from_f64(bias)))
}

/// Scale and bias with which code 0 is `value`, as well as a half can tell it.
pub(super) fn constant(value: f32) -> Option<(f16, f16)> {
    let peak = value.abs();
    // Code 0 is w1 = 2; a distance to the bias other than 1 keeps the scale in the range of normal halves.
    let distance = match peak {
        p if p > f16::MAX.to_f32() => 2.0,
        p if p < f16::MIN_POSITIVE.to_f32() => 1.0 / 512.0,
        _ => 1.0,
    };
    let scale = f16::from_f32(peak / distance);
    if scale == f16::ZERO {
        return Some((f16::ONE, f16::from_f32(2.0)));
    }
    scale
        .is_finite()
        .then(|| (scale, f16::from_f32(2.0 - distance.copysign(value))))
}
