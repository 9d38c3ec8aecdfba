//! The number format: widths, encoding and decoding, and positions in words.

use super::nested::{self, Nested};
use crate::tensor::DType;
use half::f16;

/// Bits per weight: `Four` is the format E0M4, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Bits {
    Two,
    Three,
    Four,
    Five,
    Six,
    Eight,
}

impl Bits {
    /// All formats, the smallest first.
    pub const ALL: [Self; 6] = [
        Self::Two,
        Self::Three,
        Self::Four,
        Self::Five,
        Self::Six,
        Self::Eight,
    ];

    /// The format with this many bits.
    pub fn new(bits: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|b| i64::from(b.count()) == bits)
    }

    #[inline]
    pub const fn count(self) -> u32 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
            Self::Five => 5,
            Self::Six => 6,
            Self::Eight => 8,
        }
    }

    /// K must be a multiple of this.
    pub const fn k_step(self) -> usize {
        match self {
            Self::Two => 16,
            Self::Four => 8,
            Self::Eight => 4,
            Self::Three | Self::Five | Self::Six => 32,
        }
    }

    /// Rows of words for `k` weights, a multiple of [`Bits::k_step`].
    pub const fn rows(self, k: usize) -> usize {
        k / self.k_step() * (self.k_step() * self.count() as usize / 32)
    }

    /// Weights in `rows` rows of words; `None` if no number of weights needs exactly that many.
    pub fn weights(self, rows: usize) -> Option<usize> {
        let (step, at_once) = (self.k_step(), self.rows(self.k_step()));
        rows.is_multiple_of(at_once)
            .then(|| (rows / at_once).checked_mul(step))?
    }

    /// Distance between adjacent levels of `w1`.
    pub fn step(self) -> f32 {
        match self {
            Self::Two => 0.5,
            Self::Three => 0.25,
            Self::Four => 0.125,
            Self::Five => 1.0 / 16.0,
            Self::Six => 1.0 / 32.0,
            Self::Eight => 1.0 / 128.0,
        }
    }

    pub const fn top(self) -> u8 {
        match self {
            Self::Two => 3,
            Self::Three => 7,
            Self::Four => 15,
            Self::Five => 31,
            Self::Six => 63,
            Self::Eight => 255,
        }
    }

    /// The bit planes of a quantized value, highest bits first.
    #[inline]
    pub const fn planes(self) -> &'static [Plane] {
        match self {
            Self::Two => const { &[Plane { width: 2, row: 0 }] },
            Self::Three => const { &[Plane { width: 2, row: 0 }, Plane { width: 1, row: 2 }] },
            Self::Four => const { &[Plane { width: 4, row: 0 }] },
            Self::Five => const { &[Plane { width: 4, row: 0 }, Plane { width: 1, row: 4 }] },
            Self::Six => const { &[Plane { width: 4, row: 0 }, Plane { width: 2, row: 4 }] },
            Self::Eight => const { &[Plane { width: 8, row: 0 }] },
        }
    }
}

impl std::fmt::Display for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "E0M{}", self.count())
    }
}

/// How the scales of a quantized matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// A half-precision scale and bias per group.
    Pairs,
    /// Those of GGML's K-quants.
    Nested(Nested),
}

/// The format of a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub bits: Bits,
    /// Number of weights per group.
    pub group: usize,
    pub scales: Scales,
}

impl Format {
    /// With a scale and a bias per group.
    pub const fn new(bits: Bits, group: usize) -> Self {
        let scales = Scales::Pairs;
        Self { bits, group, scales }
    }

    /// With nested scales; `None` for 8 bits.
    pub const fn nested(bits: Bits) -> Option<Self> {
        let Some(nested) = Nested::new(bits) else {
            return None;
        };
        Some(Self {
            bits,
            group: nested.group,
            scales: Scales::Nested(nested),
        })
    }

    /// K must be a multiple of this.
    pub const fn k_step(self) -> usize {
        match self.scales {
            Scales::Pairs => self.bits.k_step(),
            Scales::Nested(_) => nested::BLOCK,
        }
    }

    /// Type and shape of the scales of a `k` x `n` matrix in a file.
    pub fn scale_tensor(self, k: usize, n: usize) -> (DType, Vec<usize>) {
        let rows = self.scale_rows(k);
        match self.scales {
            Scales::Pairs => (DType::F16, vec![rows, n, 2]),
            Scales::Nested(_) => (DType::U32, vec![rows, n]),
        }
    }

    /// Rows of words of the scales of `k` weights.
    pub const fn scale_rows(self, k: usize) -> usize {
        match self.scales {
            Scales::Pairs => k.div_ceil(self.group),
            Scales::Nested(nested) => nested.rows(k),
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, groups of {}", self.bits, self.group)?;
        match self.scales {
            Scales::Pairs => Ok(()),
            Scales::Nested(_) => write!(f, ", nested scales"),
        }
    }
}

/// A bit plane: some bits of each value, packed together in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    pub width: u32,
    /// Its first row of words in a block.
    pub row: usize,
}

impl Plane {
    /// Row of words (relative to the block) and bit position of weight `k` of the block's 32.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than 32")]
    pub const fn place(self, k: usize) -> (usize, u32) {
        let per = self.per_word();
        let i = (k % per) as u32;
        (self.row + k / per, i / 2 * self.width + i % 2 * 16)
    }

    /// Weights in a word.
    #[inline]
    pub const fn per_word(self) -> usize {
        32 / self.width as usize
    }

    /// The fields of 8 consecutive weights, in one word or, with 8 bits, two, and the mask of
    /// their bits there. They are shifted to the place of the first weight. The bits of this plane
    /// are the lowest of each byte of `values`, the first weight in the lowest byte.
    #[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
    #[inline(always)]
    pub(super) const fn fields(self, values: u64) -> ([u32; 2], u32) {
        let (width, each) = (self.width, 0x0001_0001_0001_0001);
        let values = values & (0x0101_0101_0101_0101 * ((1 << width) - 1));
        // The second and third of four change places: half-words then have pairs of fields.
        let middle = (values >> 8 ^ values) & 0x0000_FF00_0000_FF00;
        let pairs = values ^ middle ^ middle << 8;
        if width == 8 {
            return ([pairs as u32, (pairs >> 32) as u32], u32::MAX);
        }
        let pairs = (pairs | pairs >> (8 - width)) & (each * ((1 << (2 * width)) - 1));
        let fields = (pairs | pairs >> (32 - 2 * width)) as u32;
        ([fields, 0], (each * ((1 << (4 * width)) - 1)) as u32)
    }
}

/// Why a matrix cannot be quantized.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    #[error("weight {index} is {value}; expected a finite number")]
    NotFinite {
        /// Position in row-major order.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A group's range needs a scale that f16 cannot represent.
    #[error("a group spans {range}, which exceeds the range of a half-precision scale")]
    Range {
        /// Smallest and largest weight.
        range: String,
    },
    /// A grid needs a scale or bias that f16 cannot represent.
    #[error("the grid {scale:e} * (q - {zero}) exceeds the range of half-precision scales")]
    Grid {
        scale: f64,
        /// The level of zero.
        zero: f64,
    },
    /// The sizes do not fit the layout.
    #[error("a {k} x {n} matrix: K must be a multiple of {step} and N even")]
    Size {
        k: usize,
        n: usize,
        /// See [`Format::k_step`].
        step: usize,
    },
    /// Not enough memory for the matrix.
    #[error("not enough memory for a {k} x {n} matrix")]
    Memory { k: usize, n: usize },
    /// The group size does not fit the layout.
    #[error("group size {group}: expected a multiple of {step}")]
    Group {
        group: usize,
        /// See [`super::GROUP_STEP`].
        step: usize,
    },
    /// Values for a group that does not exist, of the wrong length, or above the largest value.
    #[error("group {group} of column {column}: expected {expected}, found {found}")]
    Codes {
        /// Index of the group along K.
        group: usize,
        /// Index of the column.
        column: usize,
        expected: String,
        found: String,
    },
}

/// `w1` of a quantized value.
fn level(bits: Bits, code: u8) -> f32 {
    2.0 + f32::from(code) * bits.step()
}

/// The weight of a quantized value, in single precision: `scale * (w1 - bias)`.
pub fn decode(bits: Bits, scale: f16, bias: f16, code: u8) -> f32 {
    decode_with(bits, scale.to_f32(), bias.to_f32(), code)
}

/// [`decode`] with converted halves.
pub(super) fn decode_with(bits: Bits, scale: f32, bias: f32, code: u8) -> f32 {
    scale * (level(bits, code) - bias)
}

/// Quantizes a weight: `w1 = w / scale + bias`, clamped to `[2, 4)`, then its top fraction bits,
/// rounded by the next bit. The weight must be finite and the scale not 0.
pub fn encode(bits: Bits, scale: f16, bias: f16, w: f32) -> u8 {
    code_of(bits, shifted(w, scale.to_f32(), bias.to_f32()))
}

/// The quantized value of `w1`, which is in `[2, 4)`.
fn code_of(bits: Bits, w1: f32) -> u8 {
    let fraction = w1.to_bits() & 0x007F_FFFF;
    let x = bits.count();
    let (y1, y2) = (fraction >> (23 - x), (fraction >> (22 - x)) & 1);
    let [code, ..] = (y1 + y2).min(bits.top().into()).to_le_bytes();
    code
}

/// `w1` of a weight, clamped to the interval.
fn shifted(w: f32, s: f32, b: f32) -> f32 {
    const BELOW_FOUR: f32 = f32::from_bits(4.0f32.to_bits() - 1);
    (w / s + b).clamp(2.0, BELOW_FOUR)
}

/// Scale and bias of an affine grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    pub scale: f16,
    /// Bias, in the space of `w1`.
    pub bias: f16,
    /// True if f16 holds both exactly and zero is a level or the one above: every value then
    /// decodes to the grid's level, bit by bit in `f32`.
    pub exact: bool,
}

/// Scale and bias with which value q decodes to `scale * (q - zero)`. `zero` may be any number.
///
/// Exact for every f16 `scale` below 2^16 / 2^x * 2, subnormals included, with an integer `zero`
/// from 0 to 2^x; otherwise rounded to f16. An error if f16 cannot hold the bias or the scale,
/// would round the scale to zero, or if one is not finite.
pub fn affine(bits: Bits, scale: f64, zero: f64) -> Result<Affine, QuantError> {
    let step = f64::from(bits.step());
    let (s, b) = (scale / step, 2.0 + zero * step);
    let (half_s, half_b) = (f16::from_f64(s), f16::from_f64(b));
    if !half_s.is_finite() || !half_b.is_finite() || (half_s.to_f32() == 0.0 && scale != 0.0) {
        return Err(QuantError::Grid { scale, zero });
    }
    Ok(Affine {
        scale: half_s,
        bias: half_b,
        exact: half_s.to_f64() == s
            && half_b.to_f64() == b
            && zero.fract() == 0.0
            && (2.0..=4.0).contains(&b),
    })
}

/// The smallest f16 not below `v`, which is positive; `None` above the largest f16.
pub(super) fn half_above(v: f64) -> Option<f16> {
    let h = f16::from_f64(v);
    let h = if h.to_f64() < v {
        f16::from_bits(h.to_bits() + 1)
    } else {
        h
    };
    h.is_finite().then_some(h)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            assert_eq!(code_of(Bits::Four, w1), code, "{w1}");
        }
        assert_eq!((shifted(-9.0, 1.0, 2.0), shifted(9.0, 1.0, 2.0)), (2.0, top));
    }

    #[test]
    fn every_code_comes_back() {
        for bits in Bits::ALL {
            assert_eq!(Bits::new(i64::from(bits.count())), Some(bits));
            for code in 0..=bits.top() {
                for (scale, bias) in [(1.0, 2.0), (0.013, 3.0), (60000.0, 3.5)] {
                    let (s, b) = (f16::from_f32(scale), f16::from_f32(bias));
                    assert_eq!(
                        encode(bits, s, b, decode(bits, s, b, code)),
                        code,
                        "{bits} {code}"
                    );
                }
            }
            assert_eq!(level(bits, bits.top()), 4.0 - bits.step());
        }
        assert_eq!([0, 1, 7, 9, -4].map(Bits::new), [None; 5]);
    }

    #[test]
    fn planes_fill_their_words_once() {
        for bits in Bits::ALL {
            let mut taken = vec![0u32; bits.count() as usize];
            for k in 0..32 {
                let mut width = 0;
                for plane in bits.planes() {
                    let (row, bit) = plane.place(k);
                    let mask = ((1u64 << plane.width) - 1) as u32;
                    assert_eq!(taken[row] & mask << bit, 0, "{bits}, weight {k}");
                    taken[row] |= mask << bit;
                    width += plane.width;
                }
                assert_eq!(width, bits.count());
            }
            assert!(taken.iter().all(|w| *w == u32::MAX), "{bits}");
            assert_eq!(bits.rows(96), 3 * bits.count() as usize);
            assert_eq!(bits.weights(bits.rows(96)), Some(96));
        }
        assert_eq!((Bits::Four.weights(5), Bits::Six.weights(5)), (Some(40), None));
    }

    #[test]
    fn grids_that_halves_cannot_hold() {
        assert!(affine(Bits::Four, 8188.0, 8.0).unwrap().exact);
        assert!(matches!(
            affine(Bits::Four, 8192.0, 8.0),
            Err(QuantError::Grid { .. })
        ));
        assert!(affine(Bits::Eight, 511.0, 8.0).is_ok() && affine(Bits::Eight, 512.0, 8.0).is_err());
        // The smallest half, as a distance, needs no denormal scale of 8 bits of precision.
        assert!(
            affine(Bits::Four, f64::from(f16::from_bits(1)), 3.0)
                .unwrap()
                .exact
        );
        assert!(affine(Bits::Four, 1e-12, 3.0).is_err());
        assert!(
            affine(Bits::Four, f64::NAN, 3.0).is_err() && affine(Bits::Four, 1.0, f64::INFINITY).is_err()
        );
        let rough = affine(Bits::Four, 0.1, 7.3).unwrap();
        assert!(!rough.exact && (decode(Bits::Four, rough.scale, rough.bias, 9) - 0.17).abs() < 2e-3);
    }

    proptest! {
        #[test]
        fn a_grid_of_half_scales_and_whole_zeros_is_exact(
            scale in 1u16..0x6FFF, zero in 0u8..=16, q in 0u8..16, eight in any::<bool>(),
        ) {
            let s = f16::from_bits(scale);
            let bits = if eight && s.to_f32() < 511.0 { Bits::Eight } else { Bits::Four };
            let a = affine(bits, s.to_f64(), f64::from(zero)).unwrap();
            prop_assert!(a.exact);
            let exact = s.to_f32() * (f32::from(q) - f32::from(zero));
            prop_assert_eq!(decode(bits, a.scale, a.bias, q).to_bits() << 1, exact.to_bits() << 1);
        }
    }
}
