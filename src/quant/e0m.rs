//! E0Mx: x-bit weights whose code is the top of a float's fraction (paper, section 2.3; x is 4 or 8 here).
//!
//! For a group of weights along K, `w1 = w / scale + bias` lies in `[2, 4)`, where all floats share sign and exponent. The
//! code is the top x fraction bits of `w1`, rounded by the next bit: `min(y1 + y2, 2^x - 1)`. Back:
//! `w1 = 2 + code * 2 / 2^x`, one shift and one OR on the bits of a half or a float, then
//! `w = scale * (w1 - bias)`. Scale and bias are halves; the bias is in the space of `w1`.
//!
//! A group that holds or straddles zero has the bias's fraction bits below the code's cleared, so that zero comes back as
//! exactly zero; `w1` is clamped to the interval before its bits are taken, since clearing moves it. (The
//! paper does not say the latter.) Of the few scales and biases that this leaves, the ones of least squared error are
//! taken. In other groups the bias is free. A group whose weights already lie on a uniform grid of at most `2^x` levels, as
//! dequantized 4-bit checkpoints do, keeps that grid; a zero among its weights is then on the grid and
//! stays exact.
//!
//! # Layout of a matrix of K x N
//!
//! * codes: `u32[K / per][N]` with `per = 32 / x`. Word `[r][n]` holds the codes of weights `per * r + k`, `k < per`, of column
//!   `n`; code `k` is bit field `k / 2 + (k % 2) * per / 2`, counted from the lowest. Weights `2j` and `2j + 1` thus
//!   sit in the same place of the low and the high half-word, and one mask makes both into halves.
//! * scales: `f16[ceil(K / group)][N][2]`: scale, bias. The last group may be short.
//!
//! K is a multiple of `per` and N is even.

use half::f16;

/// Bits of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// E0M4.
    Four,
    /// E0M8.
    Eight,
}

impl Bits {
    /// The format with this many bits.
    pub fn new(bits: i64) -> Option<Self> {
        match bits {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// Number of bits.
    pub fn count(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Codes in a word.
    pub fn per_word(self) -> usize {
        match self {
            Self::Four => 8,
            Self::Eight => 4,
        }
    }

    /// Distance of neighbouring levels of `w1`.
    fn step(self) -> f32 {
        match self {
            Self::Four => 0.125,
            Self::Eight => 1.0 / 128.0,
        }
    }

    fn top(self) -> u32 {
        (1 << self.count()) - 1
    }

    /// First bit of code `k` in its word.
    pub fn shift(self, k: usize) -> u32 {
        let field = k / 2 + (k % 2) * self.per_word() / 2;
        u32::try_from(field).unwrap_or(0) * self.count()
    }
}

/// Scale, bias and codes of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Scale.
    pub scale: f16,
    /// Bias in the space of `w1`.
    pub bias: f16,
    /// One code a weight.
    pub codes: Vec<u8>,
}

/// Why a matrix cannot be quantized.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// NaN or infinity.
    #[error("weight {index} is {value}")]
    NotFinite {
        /// Position in row-major order.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A group's range needs a scale that a half cannot hold.
    #[error("a group spans {range}, beyond what a half-precision scale can hold")]
    Range {
        /// Largest minus smallest weight.
        range: String,
    },
    /// The sizes do not fit the layout.
    #[error("a {k} x {n} matrix: K must be a multiple of {per} and N even")]
    Size {
        /// Rows.
        k: usize,
        /// Columns.
        n: usize,
        /// Codes in a word.
        per: usize,
    },
    /// The group size does not fit the layout.
    #[error("groups of {group} weights: the size must be a multiple of {per}")]
    Group {
        /// Weights of a group.
        group: usize,
        /// Codes in a word.
        per: usize,
    },
}

/// `w1` of a code.
fn level(bits: Bits, code: u8) -> f32 {
    2.0 + f32::from(code) * bits.step()
}

/// The weight that a code stands for.
pub fn decode(bits: Bits, scale: f16, bias: f16, code: u8) -> f32 {
    scale.to_f32() * (level(bits, code) - bias.to_f32())
}

/// The code of `w1`, which is in `[2, 4)`: the top fraction bits, rounded by the next.
fn encode(bits: Bits, w1: f32) -> u8 {
    let fraction = w1.to_bits() & 0x007F_FFFF;
    let x = bits.count();
    let (y1, y2) = (fraction >> (23 - x), (fraction >> (22 - x)) & 1);
    u8::try_from((y1 + y2).min(bits.top())).unwrap_or(u8::MAX)
}

/// `w1` of a weight, clamped to the interval.
fn shifted(w: f32, s: f32, b: f32) -> f32 {
    const BELOW_FOUR: f32 = f32::from_bits(4.0f32.to_bits() - 1);
    (w / s + b).clamp(2.0, BELOW_FOUR)
}

/// The smallest half not below `v`, which is positive; none above the largest half.
fn half_above(v: f64) -> Option<f16> {
    let h = f16::from_f64(v);
    let h = if h.to_f64() < v {
        f16::from_bits(h.to_bits() + 1)
    } else {
        h
    };
    h.is_finite().then_some(h)
}

/// Quantizes one group. All weights are finite.
pub fn quantize_group(bits: Bits, weights: &[f32]) -> Result<Group, QuantError> {
    let mut codes = vec![0; weights.len()];
    let (scale, bias) = group_into(bits, weights, &mut Vec::new(), &mut codes)?;
    Ok(Group { scale, bias, codes })
}

/// Scale, bias and, in `codes`, codes of a group; `sorted` is room to work in.
fn group_into(
    bits: Bits,
    weights: &[f32],
    sorted: &mut Vec<f32>,
    codes: &mut [u8],
) -> Result<(f16, f16), QuantError> {
    let (lo, hi) = weights
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), w| {
            (l.min(*w), h.max(*w))
        });
    let found = if weights.is_empty() {
        constant(0.0)
    } else if lo == hi {
        constant(lo)
    } else {
        // A grid of few levels far apart may be met less well than its weights are without it.
        let candidates = [
            source_grid(bits, weights, lo, hi, sorted),
            nearest(bits, weights, lo, hi),
        ];
        let found = candidates
            .into_iter()
            .flatten()
            .map(|c| (largest_error(bits, weights, c), c));
        found.reduce(|a, b| if b.0 < a.0 { b } else { a }).map(|(_, c)| c)
    };
    let (scale, bias) = found.ok_or_else(|| QuantError::Range {
        range: format!("{lo:e} to {hi:e}"),
    })?;
    let (s, b) = (scale.to_f32(), bias.to_f32());
    for (code, w) in codes.iter_mut().zip(weights) {
        *code = encode(bits, shifted(*w, s, b));
    }
    Ok((scale, bias))
}

/// The largest difference that a scale and bias leave.
fn largest_error(bits: Bits, weights: &[f32], (scale, bias): (f16, f16)) -> f32 {
    let (s, b) = (scale.to_f32(), bias.to_f32());
    let off = |w: &f32| (w - s * (level(bits, encode(bits, shifted(*w, s, b))) - b)).abs();
    weights.iter().map(off).fold(0.0, f32::max)
}

/// Scale and bias with which code 0 is `value`, as well as a half can tell it.
fn constant(value: f32) -> Option<(f16, f16)> {
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

/// Scale and bias that map `[lo, hi]` into the interval, those of least squared error among a few.
fn nearest(bits: Bits, weights: &[f32], lo: f32, hi: f32) -> Option<(f16, f16)> {
    let step = bits.step();
    let mut best = None;
    let mut consider = |scale: f16, bias: f16| {
        let (s, b) = (scale.to_f32(), bias.to_f32());
        let sum: f32 = weights
            .iter()
            .map(|w| {
                let off = w / s + b - level(bits, encode(bits, shifted(*w, s, b)));
                off * off
            })
            .sum();
        let error = f64::from(sum) * f64::from(s) * f64::from(s);
        if best.is_none_or(|(least, _)| error < least) {
            best = Some((error, (scale, bias)));
        }
    };
    // The largest weight on the last level, or half a level above it.
    for span in [2.0 - step, 2.0 - step / 2.0] {
        if lo <= 0.0 && hi >= 0.0 {
            let scale = half_above((f64::from(hi) - f64::from(lo)) / f64::from(span))?;
            let cleared = ((2.0 - lo / scale.to_f32()) / step).floor() * step;
            // Cleared bits shift the group by up to a level; clearing upwards may cost less. Zero keeps a code.
            for bias in [cleared, cleared + step] {
                if bias >= 2.0 && bias <= 4.0 - step {
                    consider(scale, f16::from_f32(bias));
                }
            }
        } else {
            let (scale, bias) = one_sided(lo, hi, f64::from(span))?;
            consider(scale, bias);
        }
    }
    best.map(|(_, found)| found)
}

/// Scale and free bias of a group that does not straddle zero, with `w1` in `[2, 2 + span]`. The farther the group lies
/// from zero for its range, the coarser a half makes the bias; the scale grows by what that takes.
fn one_sided(lo: f32, hi: f32, span: f64) -> Option<(f16, f16)> {
    // From here on a half is too coarse to place the interval.
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

/// Scale and bias of a uniform grid on which all weights lie, if there is one.
fn source_grid(bits: Bits, weights: &[f32], lo: f32, hi: f32, sorted: &mut Vec<f32>) -> Option<(f16, f16)> {
    // Part of a level; the weights carry the rounding of the arithmetic that made them.
    const TOLERANCE: f32 = 1.0 / 64.0;
    sorted.clear();
    sorted.extend_from_slice(weights);
    sorted.sort_unstable_by(f32::total_cmp);
    let range = hi - lo;
    let most = bits.top() as f32;
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

/// Scale and bias of the grid `lo + q * distance`, `q` up to `count`, where halves can tell them.
fn half_grid(bits: Bits, lo: f32, distance: f32, count: f32, holds_zero: bool) -> Option<(f16, f16)> {
    /// Part of a level by which the grid may grow over all its levels.
    const GROWTH: f32 = 1.0 / 64.0;
    /// Part of a level by which it may be shifted; and that with which a finer grid is not looked for.
    const SHIFT: (f32, f32) = (1.0 / 8.0, 1.0 / 64.0);
    let step = bits.step();
    let mut best: Option<(f32, (f16, f16))> = None;
    // A finer grid holds this one, and a half tells its bias at less cost.
    let mut fine = 1.0;
    while count * fine <= bits.top() as f32 {
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

/// A quantized matrix in the layout of the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// Format.
    pub bits: Bits,
    /// Weights of a group.
    pub group: usize,
    /// Rows of the matrix.
    pub k: usize,
    /// Columns of the matrix.
    pub n: usize,
    /// `[K / per][N]` words.
    pub codes: Vec<u32>,
    /// `[ceil(K / group)][N]` pairs of scale and bias.
    pub scales: Vec<[f16; 2]>,
}

/// Room that the quantization of a column works in.
#[derive(Default)]
struct Work {
    sorted: Vec<f32>,
    codes: Vec<u8>,
}

/// The group size used where `asked` is asked for: the largest of it, 128, 64 and 32 that divides `k`, else `asked` with a
/// short last group.
pub fn group_size(asked: usize, k: usize) -> usize {
    [asked, 128, 64, 32]
        .into_iter()
        .filter(|g| *g <= asked)
        .find(|g| k.is_multiple_of(*g))
        .unwrap_or(asked)
}

/// How far quantized weights are from the given ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Largest absolute difference.
    pub max: f32,
    /// Sum of squared differences.
    pub squared: f64,
    /// Sum of the squares of the given weights.
    pub weights_squared: f64,
}

impl Loss {
    /// Adds the sums of other weights.
    pub fn add(&mut self, other: &Self) {
        self.max = self.max.max(other.max);
        self.squared += other.squared;
        self.weights_squared += other.weights_squared;
    }

    /// Norm of the differences divided by the norm of the given weights; 0 for weights that are all 0.
    pub fn relative_rms(&self) -> f64 {
        if self.squared == 0.0 {
            0.0
        } else {
            (self.squared / self.weights_squared).sqrt()
        }
    }
}

impl Packed {
    /// Quantizes a `k` x `n` matrix given by `at(k, n)`.
    pub fn quantize(
        bits: Bits,
        group: usize,
        k: usize,
        n: usize,
        at: &(dyn Fn(usize, usize) -> f32 + Sync),
    ) -> Result<Self, QuantError> {
        let mut out = Self::empty(bits, group, k, n)?;
        let (mut column, mut work, mut loss) = (vec![0.0; k], Work::default(), Loss::default());
        for j in 0..n {
            for (i, w) in column.iter_mut().enumerate() {
                *w = at(i, j);
            }
            out.set_column(j, &column, &mut work, &mut loss)?;
        }
        Ok(out)
    }

    /// Quantizes a matrix of `k` rows that is given column after column, and tells the loss.
    pub fn from_columns(
        bits: Bits,
        group: usize,
        k: usize,
        columns: &[f32],
    ) -> Result<(Self, Loss), QuantError> {
        let n = columns.len() / k.max(1);
        let mut out = Self::empty(bits, group, k, n)?;
        let (mut work, mut loss) = (Work::default(), Loss::default());
        for (j, column) in columns.chunks_exact(k).enumerate() {
            out.set_column(j, column, &mut work, &mut loss)?;
        }
        Ok((out, loss))
    }

    fn empty(bits: Bits, group: usize, k: usize, n: usize) -> Result<Self, QuantError> {
        let per = bits.per_word();
        if !k.is_multiple_of(per) || !n.is_multiple_of(2) || k == 0 || n == 0 {
            return Err(QuantError::Size { k, n, per });
        }
        if group == 0 || !group.is_multiple_of(per) {
            return Err(QuantError::Group { group, per });
        }
        Ok(Self {
            bits,
            group,
            k,
            n,
            codes: vec![0; k / per * n],
            scales: vec![[f16::ZERO; 2]; k.div_ceil(group) * n],
        })
    }

    fn set_column(
        &mut self,
        j: usize,
        column: &[f32],
        work: &mut Work,
        loss: &mut Loss,
    ) -> Result<(), QuantError> {
        if let Some(i) = column.iter().position(|w| !w.is_finite()) {
            return Err(QuantError::NotFinite {
                index: i * self.n + j,
                value: column[i].to_string(),
            });
        }
        let (bits, n, per) = (self.bits, self.n, self.bits.per_word());
        work.codes.resize(self.group, 0);
        for (g, weights) in column.chunks(self.group).enumerate() {
            let codes = &mut work.codes[..weights.len()];
            let (scale, bias) = group_into(bits, weights, &mut work.sorted, codes)?;
            self.scales[g * n + j] = [scale, bias];
            for (r, part) in codes.chunks_exact(per).enumerate() {
                let word = part
                    .iter()
                    .enumerate()
                    .map(|(k, code)| u32::from(*code) << bits.shift(k));
                self.codes[(g * self.group / per + r) * n + j] = word.fold(0, |word, code| word | code);
            }
            let mut max = 0f32;
            for (w, code) in weights.iter().zip(&*codes) {
                let off = w - decode(bits, scale, bias, *code);
                max = max.max(off.abs());
                loss.squared += f64::from(off) * f64::from(off);
                loss.weights_squared += f64::from(*w) * f64::from(*w);
            }
            loss.max = loss.max.max(max);
        }
        Ok(())
    }

    /// The weight at row `i`, column `j`.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        let per = self.bits.per_word();
        let [scale, bias] = self.scales[i / self.group * self.n + j];
        let code = self.codes[i / per * self.n + j] >> self.bits.shift(i % per) & self.bits.top();
        decode(self.bits, scale, bias, u8::try_from(code).unwrap_or(0))
    }
}

/// Dequantizes rows `first .. first + count` of packed `codes` and `scales` into `out`, row-major `count x n`. `first` is a
/// multiple of the codes in a word.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of a matrix that lies in a tensor"
)]
pub fn decode_rows(
    bits: Bits,
    group: usize,
    n: usize,
    codes: &[u32],
    scales: &[[f16; 2]],
    first: usize,
    count: usize,
    out: &mut [f32],
) {
    let per = bits.per_word();
    let mask = bits.top();
    let mut table = vec![(0f32, 0f32); n];
    let mut group_now = usize::MAX;
    for (i, row) in (first..first + count).zip(out.chunks_exact_mut(n)) {
        if i / group != group_now {
            group_now = i / group;
            for (t, [s, b]) in table.iter_mut().zip(&scales[group_now * n..]) {
                *t = (s.to_f32(), b.to_f32());
            }
        }
        let shift = bits.shift(i % per);
        let words = &codes[i / per * n..(i / per + 1) * n];
        for ((y, w), (s, b)) in row.iter_mut().zip(words).zip(&table) {
            let w1 = f32::from_bits(0x4000_0000 | ((w >> shift & mask) << (23 - bits.count())));
            *y = s * (w1 - b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(bits: Bits, weights: &[f32]) -> Vec<f32> {
        let g = quantize_group(bits, weights).unwrap();
        g.codes
            .iter()
            .map(|c| decode(bits, g.scale, g.bias, *c))
            .collect()
    }

    #[test]
    fn golden_bytes() {
        let weights: Vec<f32> = (0..8).map(|i| i as f32 - 3.0).collect();
        let p = Packed::quantize(Bits::Four, 8, 8, 2, &|i, j| weights[i] * (j as f32 + 1.0)).unwrap();
        // Distance 1 is scale 8; zero is code 3, so the bias is 2 + 3/8. Codes 0..7: even weights in the low half-word.
        assert_eq!(p.scales[0], [f16::from_f32(8.0), f16::from_f32(2.375)]);
        assert_eq!(p.codes, [0x7531_6420, 0x7531_6420]);
        assert_eq!(p.scales[1][0], f16::from_f32(16.0));
        let p = Packed::quantize(Bits::Eight, 4, 4, 2, &|i, _| [0.0, 255.0, 1.0, 2.0][i]).unwrap();
        assert_eq!(p.codes[0], 0x02FF_0100, "weight 1 is byte 2, weight 2 byte 1");
    }

    #[test]
    fn golden_group_without_a_grid() {
        let g = quantize_group(Bits::Four, &[-1.0, 0.0, 0.013, 0.4, 0.93]).unwrap();
        // 15 steps span 1.93; a free bias would be 2.97, and clearing upwards costs less than to 2.875. Zero is code 8.
        assert_eq!(
            (g.scale, g.bias),
            (f16::from_f32(1.030_273_4), f16::from_f32(3.0))
        );
        assert_eq!(g.codes, [0, 8, 8, 11, 15]);
        assert_eq!(decode(Bits::Four, g.scale, g.bias, 8), 0.0);
    }

    #[test]
    fn rounding_and_clamping() {
        let top = f32::from_bits(4.0f32.to_bits() - 1);
        for (w1, code) in [
            (2.0, 0),
            (2.0624, 0),
            (2.0625, 1),
            (3.9374, 15),
            (3.9375, 15),
            (top, 15),
        ] {
            assert_eq!(encode(Bits::Four, w1), code, "{w1}");
        }
        assert_eq!((shifted(-9.0, 1.0, 2.0), shifted(9.0, 1.0, 2.0)), (2.0, top));
    }

    #[test]
    fn groups_far_from_zero_tiny_and_large() {
        for (bits, levels) in [(Bits::Four, 15.0), (Bits::Eight, 255.0)] {
            for (at, range) in [
                (10.0f32, 1.0f32),
                (-300.0, 1.0),
                (1e3, 1.0),
                (-6e4, 1.0),
                (9e4, 3.0),
                (1.0, 1e-4),
                (1e-5, 1e-6),
                (-2e-6, 1e-6),
            ] {
                let weights: Vec<f32> = (0..32)
                    .map(|i| at + range * ((i * 7 % 32) as f32 / 31.0).powi(2))
                    .collect();
                // Half a level, a coarser scale far from zero, and a scale below the normal halves.
                let bound = range / levels * 0.6 + at.abs() / 512.0 / levels + 6e-8 * 2.0;
                for (w, y) in weights.iter().zip(back(bits, &weights)) {
                    assert!((w - y).abs() <= bound, "{bits:?}: {w} became {y}, bound {bound}");
                }
            }
            for v in [1e5f32, -70000.0, 2e-6, -2e-7] {
                let y = back(bits, &[v; 4])[0];
                assert!((y - v).abs() <= v.abs() / 2000.0, "{v} became {y}");
            }
            assert_eq!(back(bits, &[1e-20; 4]), [0.0; 4]);
            for far in [
                [2e5; 2],
                [-1e38, -1e38],
                [1e8, 1.1e8],
                [0.0, 2e5],
                [f32::MIN, f32::MAX],
            ] {
                assert!(
                    matches!(quantize_group(bits, &far), Err(QuantError::Range { .. })),
                    "{far:?}"
                );
            }
            assert!(quantize_group(bits, &[]).unwrap().codes.is_empty());
        }
        assert_eq!(
            Packed::quantize(Bits::Four, 12, 32, 2, &|_, _| 1.0),
            Err(QuantError::Group { group: 12, per: 8 })
        );
        assert!(Packed::from_columns(Bits::Four, 32, 0, &[]).is_err());
    }

    #[test]
    fn columns_and_their_loss() {
        let at = |i: usize, j: usize| ((i * 31 + j * 17) % 101) as f32 / 37.0 - 1.2;
        let columns: Vec<f32> = (0..6 * 40).map(|c| at(c % 40, c / 40)).collect();
        let (p, loss) = Packed::from_columns(Bits::Four, 32, 40, &columns).unwrap();
        assert_eq!(p, Packed::quantize(Bits::Four, 32, 40, 6, &at).unwrap());
        let off = |c: usize| columns[c] - p.get(c % 40, c / 40);
        assert_eq!(loss.max, (0..240).map(|c| off(c).abs()).fold(0.0, f32::max));
        let squared: f64 = (0..240).map(|c| f64::from(off(c)).powi(2)).sum();
        assert!(
            (loss.squared - squared).abs() < 1e-9 && loss.relative_rms() > 0.01 && loss.relative_rms() < 0.1
        );
        assert_eq!(Loss::default().relative_rms(), 0.0);
    }

    #[test]
    fn special_groups() {
        for bits in [Bits::Four, Bits::Eight] {
            for v in [0.0, -0.0, 1.5, -3.25, 65504.0] {
                assert_eq!(back(bits, &[v; 5]), [v; 5], "constant groups are exact");
            }
            let y = back(bits, &[-1.0, 0.0, 0.37, 2.2]);
            assert_eq!(y[1], 0.0);
            let y = back(bits, &[0.0, 1e-7, 3e-7]);
            assert_eq!(y[0], 0.0);
            let y = back(bits, &[4.6420607e-4, -1.5007236e-3]);
            assert!(
                (y[0] - 4.6420607e-4).abs() < 1.4e-4 / if bits == Bits::Four { 1.0 } else { 16.0 },
                "{y:?}"
            );
            let y = back(bits, &[0.01, -0.02, 100.0, 0.0]);
            assert!((y[2] - 100.0).abs() < 7.0 && y[3] == 0.0);
            assert!(quantize_group(bits, &[-3e38, 3e38]).is_err());
        }
        assert!(matches!(
            Packed::quantize(Bits::Four, 32, 32, 2, &|i, _| if i == 3 { f32::NAN } else { 1.0 }),
            Err(QuantError::NotFinite { index: 6, .. })
        ));
        assert!(Packed::quantize(Bits::Four, 32, 12, 2, &|_, _| 1.0).is_err());
    }

    #[test]
    fn group_sizes() {
        assert_eq!(
            [
                group_size(128, 4096),
                group_size(128, 576),
                group_size(128, 96),
                group_size(32, 576),
                group_size(128, 40)
            ],
            [128, 64, 32, 32, 128]
        );
    }

    proptest! {
        #[test]
        fn error_is_bounded(
            weights in prop::collection::vec(-2.0f32..3.0, 2..64),
            scale in prop_oneof![Just(1e-3f32), Just(1.0), Just(100.0)],
        ) {
            let weights: Vec<f32> = weights.iter().map(|w| w * scale).collect();
            let range = weights.iter().copied().fold(0.0f32, |m, w| m.max((w - weights[0]).abs())) * 2.0;
            let peak = weights.iter().copied().fold(0.0f32, |m, w| m.max(w.abs()));
            for (bits, levels) in [(Bits::Four, 15.0), (Bits::Eight, 255.0)] {
                // A level for the cleared bias, the clamp and rounding; half precision of scale and bias.
                let bound = range / levels * 1.02 + peak * 1.5e-3;
                for (w, y) in weights.iter().zip(back(bits, &weights)) {
                    prop_assert!((w - y).abs() <= bound, "{w} became {y}, bound {bound}");
                }
            }
        }

        #[test]
        fn zero_stays_zero(weights in prop::collection::vec(-5.0f32..5.0, 1..40), at in 0usize..40) {
            let mut weights = weights;
            let at = at % weights.len();
            weights[at] = 0.0;
            for bits in [Bits::Four, Bits::Eight] {
                prop_assert_eq!(back(bits, &weights)[at], 0.0);
            }
        }

        #[test]
        fn an_affine_source_grid_is_kept(d in 0.001f32..0.5, m in -4.0f32..4.0, q in prop::collection::vec(0u8..16, 32)) {
            let d = f16::from_f32(d).to_f32();
            let m = f16::from_f32(m * d * 4.0).to_f32();
            let weights: Vec<f32> = q.iter().map(|q| d * f32::from(*q) + m).collect();
            for (w, y) in weights.iter().zip(back(Bits::Four, &weights)) {
                prop_assert!((w - y).abs() <= d * 0.13, "{w} became {y} at distance {d}");
            }
        }

        #[test]
        fn rows_agree_with_single_weights(seed in 0u32..1000) {
            let at = |i: usize, j: usize| ((i * 31 + j * 17 + seed as usize * 7) % 101) as f32 / 37.0 - 1.2;
            for bits in [Bits::Four, Bits::Eight] {
                let p = Packed::quantize(bits, 32, 40, 6, &at).unwrap();
                let mut rows = vec![0.0; 40 * 6];
                decode_rows(bits, 32, 6, &p.codes, &p.scales, 0, 40, &mut rows);
                for i in 0..40 {
                    for j in 0..6 {
                        prop_assert_eq!(rows[i * 6 + j], p.get(i, j));
                    }
                }
            }
        }
    }
}
