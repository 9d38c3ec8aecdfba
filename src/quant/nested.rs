//! Nested scales, those of GGML's K-quants: an integer scale, and for some widths an integer
//! minimum, per group, times halves per block of 256 weights.

use super::format::Bits;
use super::transcode::Grid;
use half::f16;

/// Weights that share the halves. K is a multiple of this.
pub const BLOCK: usize = 256;

/// The largest number of groups of a block.
pub const MOST_GROUPS: usize = 16;

/// Halves are stored times this. Most that GGML writes are subnormal, and GPUs may take those for
/// 0. No stored half is.
pub const UNIT: f32 = 16384.0;

/// How the scales of a width are nested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nested {
    bits: Bits,
    /// Weights that share an integer scale.
    pub group: usize,
    /// Bits of the integers of a group, its entry: the scale is the low bits, the minimum, if
    /// there is one, the high half.
    pub entry: u32,
    /// Whether groups have minima.
    pub minima: bool,
}

/// The scales of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Block {
    /// What the integer scales and the integer minima are multiplied by.
    pub halves: [f16; 2],
    pub scales: [i8; MOST_GROUPS],
    pub minima: [u8; MOST_GROUPS],
}

impl Block {
    /// The halves as they are stored.
    fn stored(&self) -> [f16; 2] {
        self.halves.map(|h| f16::from_f32(h.to_f32() * UNIT))
    }

    /// The first half that cannot be stored: it is not finite, or 4 or more.
    pub fn beyond(&self) -> Option<f16> {
        let mut all = self.halves.into_iter().zip(self.stored());
        all.find(|(_, stored)| !stored.is_finite()).map(|(half, _)| half)
    }

    /// The grid of group `g`.
    pub fn grid(&self, nested: Nested, g: usize) -> Grid {
        let [d, dmin] = self.halves.map(f16::to_f64);
        let scale = d * f64::from(self.scales[g]);
        Grid {
            scale,
            offset: -scale * f64::from(nested.zero()) - dmin * f64::from(self.minima[g]),
        }
    }
}

impl Nested {
    /// That of a width; `None` for 8 bits.
    pub const fn new(bits: Bits) -> Option<Self> {
        let (group, entry, minima) = match bits {
            Bits::Two => (16, 8, true),
            Bits::Three => (16, 6, false),
            Bits::Four | Bits::Five => (32, 12, true),
            Bits::Six => (16, 8, false),
            Bits::Eight => return None,
        };
        Some(Self {
            bits,
            group,
            entry,
            minima,
        })
    }

    pub const fn groups(self) -> usize {
        BLOCK / self.group
    }

    /// Whether a block has 16 integers of 6 bits. The first twelve are in the low 24 bits of three
    /// words, four in each, the others in the high bytes. Else a block fills four words.
    pub const fn is_six(self) -> bool {
        matches!(self.entry, 6 | 12)
    }

    /// Entries in a row of words.
    pub const fn per_word(self) -> usize {
        let bits = if self.is_six() { 24 } else { 32 };
        bits / self.entry as usize
    }

    /// Bits of an integer scale.
    pub const fn scale_bits(self) -> u32 {
        if self.minima { self.entry / 2 } else { self.entry }
    }

    /// Rows of words with integers, per block.
    pub const fn words(self) -> usize {
        if self.is_six() { 3 } else { 4 }
    }

    /// Rows of words with halves, which are before those with integers: the two halves of a block,
    /// or, without minima, those of two blocks.
    pub const fn half_rows(self, k: usize) -> usize {
        (k / BLOCK).div_ceil(if self.minima { 1 } else { 2 })
    }

    /// Rows of words for `k` weights.
    pub const fn rows(self, k: usize) -> usize {
        self.half_rows(k) + k / BLOCK * self.words()
    }

    /// What is subtracted from a stored scale.
    const fn middle(self) -> i32 {
        if !self.minima && self.is_six() { 32 } else { 0 }
    }

    /// The value of a weight 0 if groups have no minima.
    pub fn zero(self) -> f32 {
        if self.minima {
            0.0
        } else {
            f32::from(self.bits.top() / 2 + 1)
        }
    }

    /// Stores the scales of block `b` in column `j` of rows of `n` words, for `k` weights. False
    /// if an integer is out of range, or a half is [`Block::beyond`] what can be stored.
    #[must_use]
    pub fn set(self, words: &mut [u32], n: usize, k: usize, (b, j): (usize, usize), block: &Block) -> bool {
        if block.beyond().is_some() {
            return false;
        }
        let mut entries = [0u32; MOST_GROUPS];
        let width = self.scale_bits();
        for (g, entry) in entries.iter_mut().enumerate().take(self.groups()) {
            let (scale, minimum) = (block.scales[g], block.minima[g]);
            let stored = i32::from(scale) + self.middle();
            let fits = if self.minima || self.is_six() {
                (0..1 << width).contains(&stored)
            } else {
                true
            };
            let in_place = u32::from(minimum) < 1 << (self.entry - width);
            if !fits || !in_place {
                return false;
            }
            *entry = stored.cast_unsigned() & ((1 << width) - 1) | u32::from(minimum) << width;
        }
        let [d, m] = block.stored().map(|h| u32::from(h.to_bits()));
        if self.minima {
            words[b * n + j] = d | m << 16;
        } else {
            let (word, shift) = (&mut words[b / 2 * n + j], 16 * (b % 2));
            *word = *word & !(0xFFFF << shift) | d << shift;
        }
        let first = self.half_rows(k) + b * self.words();
        let mut all = [0; 4];
        for (word, entries) in all.iter_mut().zip(entries.chunks(self.per_word())) {
            let parts = entries.iter().rev();
            *word = parts.fold(0, |word, entry| word << self.entry | entry);
        }
        for row in 0..self.words() {
            words[(first + row) * n + j] = if self.is_six() {
                all[row] | (all[3] >> (8 * row) & 0xFF) << 24
            } else {
                all[row]
            };
        }
        true
    }

    /// `[unit, rest]` of group `g` in column `j`: a weight is `unit * (value - zero) + rest`.
    /// Without minima, `rest` is 0.
    pub fn get(self, words: &[u32], n: usize, k: usize, (g, j): (usize, usize)) -> [f32; 2] {
        let (b, i) = (g / self.groups(), g % self.groups());
        let halves = if self.minima {
            words[b * n + j]
        } else {
            words[b / 2 * n + j] >> (16 * (b % 2))
        };
        let half = |bits: u32| {
            let [a, b, ..] = bits.to_le_bytes();
            f16::from_le_bytes([a, b]).to_f32() / UNIT
        };
        let first = self.half_rows(k) + b * self.words();
        let word = |row: usize| words[(first + row) * n + j];
        let per = self.per_word();
        let word = match i / per {
            3 if self.is_six() => (0..3).fold(0, |all, row| all | word(row) >> 24 << (8 * row)),
            row => word(row),
        };
        let entry = word >> (i % per * self.entry as usize) & ((1 << self.entry) - 1);
        let number = |v: u32| {
            let [v, ..] = v.to_le_bytes();
            f32::from(v)
        };
        if self.minima {
            let width = self.scale_bits();
            let (scale, minimum) = (entry & ((1 << width) - 1), entry >> width);
            [
                half(halves) * number(scale),
                -(half(halves >> 16) * number(minimum)),
            ]
        } else {
            let [byte, ..] = entry.to_le_bytes();
            let scale = if self.is_six() {
                number(entry) - 32.0
            } else {
                f32::from(byte.cast_signed())
            };
            [half(halves) * scale, 0.0]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_from_their_places() {
        let (n, k) = (3, 3 * BLOCK);
        for bits in Bits::ALL {
            let Some(nested) = Nested::new(bits) else {
                assert_eq!(bits, Bits::Eight);
                continue;
            };
            let block = |b: usize, j: usize| {
                let number = |i: usize| i32::try_from((i * 37 + b * 11 + j * 5) % 64).unwrap();
                let scale = |i| match (nested.minima, nested.is_six()) {
                    (true, true) => number(i),
                    (true, false) => number(i) % 16,
                    (false, true) => number(i) - 32,
                    (false, false) => 4 * number(i) - 128,
                };
                let minimum = |i| match (nested.minima, nested.is_six()) {
                    (true, true) => number(i + 3),
                    (true, false) => number(i + 3) % 16,
                    (false, _) => 0,
                };
                let whole = |i: usize| i < nested.groups();
                // From the least subnormal on, of both signs.
                let half = |i: usize| {
                    let sign = if i % 3 == 1 { 0x8000 } else { 0 };
                    f16::from_bits(sign | [1, 0x3FF, 0x400, 0x1234, 0x43FE][i % 5])
                };
                Block {
                    halves: [
                        half(b + 2 * j),
                        if nested.minima { half(b + j + 3) } else { f16::ZERO },
                    ],
                    scales: std::array::from_fn(|i| {
                        i8::try_from(if whole(i) { scale(i) } else { 0 }).unwrap()
                    }),
                    minima: std::array::from_fn(|i| {
                        u8::try_from(if whole(i) { minimum(i) } else { 0 }).unwrap()
                    }),
                }
            };
            let places = || (0..3).flat_map(|b| (0..n).map(move |j| (b, j)));
            let mut words = vec![0; nested.rows(k) * n];
            for at in places() {
                assert!(nested.set(&mut words, n, k, at, &block(at.0, at.1)), "{bits}");
            }
            for (b, j) in places() {
                let wanted = block(b, j);
                let [d, m] = wanted.halves.map(f16::to_f32);
                for i in 0..nested.groups() {
                    let found = nested.get(&words, n, k, (b * nested.groups() + i, j));
                    let [scale, minimum] = [f32::from(wanted.scales[i]), f32::from(wanted.minima[i])];
                    assert_eq!(found, [d * scale, -(m * minimum)], "{bits}, block {b}, group {i}");
                }
            }
            let bytes = 4 * nested.rows(2 * BLOCK) + 2 * BLOCK * bits.count() as usize / 8;
            let ggml = match bits {
                Bits::Two => 84,
                Bits::Three => 110,
                Bits::Four => 144,
                Bits::Five => 176,
                _ => 210,
            };
            assert_eq!(bytes, 2 * ggml, "{bits}: as many bytes as GGML's blocks");
        }
    }

    #[test]
    fn halves_out_of_range_are_refused() {
        let nested = Nested::new(Bits::Four).unwrap();
        let mut words = vec![0; nested.rows(BLOCK)];
        for (half, fits) in [
            (3.998, true),
            (-4.0, false),
            (f32::NAN, false),
            (f32::INFINITY, false),
        ] {
            for at in 0..2 {
                let mut block = Block::default();
                block.halves[at] = f16::from_f32(half);
                assert_eq!(block.beyond().is_none(), fits, "{half}");
                assert_eq!(nested.set(&mut words, 1, BLOCK, (0, 0), &block), fits, "{half}");
            }
        }
    }

    #[test]
    fn integers_out_of_range_are_refused() {
        for (bits, scale, minimum) in [
            (Bits::Two, 16, 0),
            (Bits::Two, 0, 16),
            (Bits::Three, 32, 0),
            (Bits::Three, -33, 0),
            (Bits::Four, 64, 0),
            (Bits::Four, -1, 0),
            (Bits::Four, 0, 64),
            (Bits::Six, 0, 1),
        ] {
            let nested = Nested::new(bits).unwrap();
            let mut block = Block::default();
            block.scales[1] = scale;
            block.minima[1] = minimum;
            let mut words = vec![0; nested.rows(BLOCK)];
            assert!(
                !nested.set(&mut words, 1, BLOCK, (0, 0), &block),
                "{bits}: {scale}, {minimum}"
            );
        }
    }
}
