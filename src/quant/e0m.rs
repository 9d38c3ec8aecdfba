//! E0Mx: x-bit weights whose code is the top of a float's fraction (paper, section 2.3; x is 4 or 8 here).
//!
//! For a group of weights along K, `w1 = w / scale + bias` lies in `[2, 4)`, where all floats share sign and exponent. The
//! code is the top x fraction bits of `w1`, rounded by the next bit: `min(y1 + y2, 2^x - 1)`. Back:
//! `w1 = 2 + code * 2 / 2^x`, one shift and one OR on the bits of a half or a float, then
//! `w = scale * (w1 - bias)`. Scale and bias are halves; the bias is in the space of `w1`.
//!
//! A group that holds or straddles zero has the bias's fraction bits below the code's cleared, so that zero comes back as
//! exactly zero; `w1` is clamped to the interval before its bits are taken, since clearing moves it. (The
//! paper does not say the latter.) A group whose weights already lie on a uniform grid of at most `2^x` levels, as
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

/// The smallest half not below `v`, which is positive and at most 65504.
fn half_above(v: f32) -> f16 {
    let h = f16::from_f32(v);
    if h.to_f32() < v { f16::from_bits(h.to_bits() + 1) } else { h }
}

/// Quantizes one group. All weights are finite.
pub fn quantize_group(bits: Bits, weights: &[f32]) -> Result<Group, QuantError> {
    let (lo, hi) = weights.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), w| (l.min(*w), h.max(*w)));
    let range_error = || QuantError::Range { range: format!("{lo:e} to {hi:e}") };
    let (scale, bias) = if lo == hi || weights.is_empty() {
        let value = if weights.is_empty() { 0.0 } else { lo };
        if value.abs() > f16::MAX.to_f32() {
            return Err(range_error());
        }
        // Code 0 is w1 = 2: a bias of 1 makes the scale the weight itself, and a bias of 2 makes it zero.
        let scale = f16::from_f32(value);
        if scale.to_f32() == 0.0 { (f16::ONE, f16::from_f32(2.0)) } else { (scale, f16::ONE) }
    } else if let Some(found) = source_grid(bits, weights, lo, hi) {
        found
    } else {
        let span = 2.0 - bits.step();
        let ideal = f64::from(hi) / f64::from(span) - f64::from(lo) / f64::from(span);
        if ideal > f64::from(f16::MAX.to_f32()) {
            return Err(range_error());
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked against the largest half")]
        let scale = half_above((ideal as f32).max(f16::MIN_POSITIVE_SUBNORMAL.to_f32()));
        let free = 2.0 - lo / scale.to_f32();
        let straddles = lo <= 0.0 && hi >= 0.0;
        let bias = if straddles { (free / bits.step()).floor() * bits.step() } else { free };
        if bias.abs() > f16::MAX.to_f32() {
            // The group is constant at half precision.
            (f16::from_f32(lo / 2.0 + hi / 2.0), f16::ONE)
        } else {
            (scale, f16::from_f32(bias))
        }
    };
    let (s, b) = (scale.to_f32(), bias.to_f32());
    let below_four = f32::from_bits(4.0f32.to_bits() - 1);
    let codes = weights.iter().map(|w| encode(bits, (w / s + b).clamp(2.0, below_four))).collect();
    Ok(Group { scale, bias, codes })
}

/// Scale and bias of a uniform grid on which all weights lie, if there is one.
fn source_grid(bits: Bits, weights: &[f32], lo: f32, hi: f32) -> Option<(f16, f16)> {
    // Rounding of the bias to a half must stay far below a level.
    const TOLERANCE: f32 = 1.0 / 64.0;
    let mut sorted = weights.to_vec();
    sorted.sort_by(f32::total_cmp);
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
            let scale = f16::from_f32(distance / bits.step());
            let s = scale.to_f32();
            // The grid must survive the rounding of its distance to a half, over all its levels.
            if s < f16::MIN_POSITIVE.to_f32() || s > f16::MAX.to_f32() || ((distance / bits.step() / s - 1.0) * count).abs() > TOLERANCE {
                return None;
            }
            let mut bias = 2.0 - lo / s;
            if sorted.contains(&0.0) {
                bias = (bias / bits.step()).round() * bits.step();
            }
            let rounded = f16::from_f32(bias);
            let fits = (rounded.to_f32() - bias).abs() <= bits.step() * TOLERANCE * 8.0 && bias.abs() < 1024.0;
            return fits.then_some((scale, rounded));
        }
        parts += 1.0;
    }
    None
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

/// The group size used where `asked` is asked for: the largest of it, 64 and 32 that divides `k`, else `asked` with a
/// short last group.
pub fn group_size(asked: usize, k: usize) -> usize {
    [asked, 64, 32].into_iter().filter(|g| *g <= asked).find(|g| k.is_multiple_of(*g)).unwrap_or(asked)
}

impl Packed {
    /// Quantizes the columns `columns` of a matrix given by `at(k, n)`, into a matrix of that many columns.
    pub fn quantize(
        bits: Bits,
        group: usize,
        k: usize,
        n: usize,
        at: &(dyn Fn(usize, usize) -> f32 + Sync),
    ) -> Result<Self, QuantError> {
        let per = bits.per_word();
        if !k.is_multiple_of(per) || !n.is_multiple_of(2) || k == 0 || n == 0 {
            return Err(QuantError::Size { k, n, per });
        }
        let groups = k.div_ceil(group);
        let mut out = Self {
            bits,
            group,
            k,
            n,
            codes: vec![0; k / per * n],
            scales: vec![[f16::ZERO; 2]; groups * n],
        };
        let mut column = Vec::with_capacity(group);
        for j in 0..n {
            for g in 0..groups {
                let range = g * group..((g + 1) * group).min(k);
                column.clear();
                for i in range.clone() {
                    let w = at(i, j);
                    if !w.is_finite() {
                        return Err(QuantError::NotFinite { index: i * n + j, value: w.to_string() });
                    }
                    column.push(w);
                }
                let q = quantize_group(bits, &column)?;
                out.scales[g * n + j] = [q.scale, q.bias];
                for (i, code) in range.zip(q.codes) {
                    out.codes[i / per * n + j] |= u32::from(code) << bits.shift(i % per);
                }
            }
        }
        Ok(out)
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
#[expect(clippy::too_many_arguments, reason = "the parts of a matrix that lies in a tensor")]
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
        g.codes.iter().map(|c| decode(bits, g.scale, g.bias, *c)).collect()
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
        assert_eq!(p.codes[0], 0x02FF_0100 & 0xFF00_FFFF | 0x00FF_0000, "weight 1 is byte 2, weight 2 byte 1");
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
        assert_eq!([group_size(128, 4096), group_size(128, 576), group_size(128, 96), group_size(32, 576), group_size(128, 40)], [128, 64, 32, 32, 128]);
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
