//! Quantization methods: choose scales, biases and quantized values.

use super::format::{Bits, QuantError, encode, half_above};
use super::packed::Column;
use super::search;
use half::f16;

/// How the scale and bias of a group are chosen. Weights are then rounded to nearest ([`encode`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// The paper's rounding: all weights and zero are inside the interval, and the low bits of the
    /// bias are cleared.
    ///
    /// `[min(w, 0), max(w, 0)]` is mapped to `[2, 4 - eps]`, where eps is the spacing of f16 there,
    /// 2^-9. The scale is the smallest f16 not below the range divided by `2 - eps`. The bias is
    /// `2 - min / scale`, cleared below its highest x fraction bits. The paper's range need not
    /// contain zero; here it does, so that the bias is in the interval and zero is exact.
    /// Importance of inputs is ignored.
    Rtn,
    /// Least squared error over both clipping limits and the position of zero. A uniform grid that
    /// contains the weights is kept; constant groups are exact within f16 precision.
    #[default]
    Mse,
    /// Like [`Method::Mse`], with the least absolute error.
    Mae,
}

impl Method {
    /// All methods with their names.
    pub const NAMES: [(&'static str, Self); 3] = [("rtn", Self::Rtn), ("mse", Self::Mse), ("mae", Self::Mae)];

    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, m)| *m == self)
            .map_or("", |(n, _)| n)
    }

    /// Scale and bias for a group of finite weights. Zero is exact in every group that contains or
    /// straddles it, except if the weights lie on a grid without zero. `importance` is the mean
    /// square of each weight's input and weights the errors. An error if f16 cannot hold the scale.
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
                // Absolute errors have more local minima; the least-squares solution is a good
                // start.
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

/// Reusable buffers for methods.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    pub(super) sorted: Vec<f32>,
    pub(super) importance: Vec<f32>,
}

/// Quantizes columns of weights: the interface of all methods.
pub trait ColumnMethod: Sync {
    /// Appends to the empty `out` a scale and bias per `group` weights along K (the last group may
    /// be short), and a value per weight. The weights are finite.
    fn column(
        &self,
        bits: Bits,
        group: usize,
        weights: &[f32],
        scratch: &mut Scratch,
        out: &mut Column,
    ) -> Result<(), QuantError>;

    /// Quantizes consecutive columns of `k` weights and passes them to `take` in order. Equal to
    /// [`ColumnMethod::column`] for each; some methods are faster with several columns.
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

/// Quantizes each group independently.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByGroup<'a> {
    pub method: Method,
    /// Mean square of each of the K inputs; `None` weights all equally. Zeros and non-finite
    /// numbers count as zero.
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

/// Scale and bias with which value 0 decodes to `value`, within f16 precision.
pub(super) fn constant(value: f32) -> Option<(f16, f16)> {
    let peak = value.abs();
    // Value 0 is w1 = 2; a distance to the bias other than 1 keeps the scale a normal f16.
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
