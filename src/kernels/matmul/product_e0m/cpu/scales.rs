//! Scales of a panel, group by group.

use super::words::{Words, WordsJob};
use crate::quant::nested::{Nested, UNIT};
use crate::quant::{Bits, Format, Scales};
use crate::tensor::PANEL;

/// The nesting of a width that has one.
const fn nested(bits: usize) -> Option<Nested> {
    match bits {
        2 => Nested::new(Bits::Two),
        3 => Nested::new(Bits::Three),
        4 => Nested::new(Bits::Four),
        5 => Nested::new(Bits::Five),
        6 => Nested::new(Bits::Six),
        _ => None,
    }
}

/// How an integer becomes a weight: `unit * scale * integer`, plus the weight of integer 0. With
/// pairs, that is `scale * (level - bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Meaning {
    pub unit: f32,
    pub level: f32,
}

/// Stands for entries before the first ones are read.
static NOTHING: u32 = 0;

/// Reads the scales of `V` vectors of columns.
pub struct Reader<S: Words, const BITS: usize, const NESTED: bool, const V: usize> {
    /// Pairs, or halves of nested scales.
    at: *const u32,
    integers: *const u32,
    meaning: Meaning,
    /// Groups that were read.
    group: usize,
    scale: [S::F; V],
    minimum: [S::F; V],
    /// Entries of the next groups, the next one in the low bits.
    entries: [S::U; V],
}

impl<S: Words, const BITS: usize, const NESTED: bool, const V: usize> Reader<S, BITS, NESTED, V> {
    /// Of `k` weights of columns whose first words are at `at`.
    ///
    /// # Safety
    /// As for [`Words`]. The panel has the scales of the groups that are read.
    #[inline(always)]
    pub unsafe fn new(at: *const u32, k: usize, meaning: Meaning) -> Self {
        let halves = match const { nested(BITS) } {
            Some(nested) if NESTED => nested.half_rows(k),
            _ => 0,
        };
        unsafe {
            Self {
                at,
                integers: at.wrapping_add(halves * PANEL),
                meaning,
                group: 0,
                scale: [S::splat(0.0); V],
                minimum: [S::splat(0.0); V],
                entries: [S::word(&raw const NOTHING); V],
            }
        }
    }

    /// For the next group: the distance of weights of successive integers, and the weight of
    /// integer 0.
    ///
    /// # Safety
    /// As for [`Reader::new`].
    #[inline(always)]
    pub unsafe fn next(&mut self) -> [[S::F; V]; 2] {
        unsafe {
            match const { nested(BITS) } {
                Some(nested) if NESTED => self.nested(nested),
                _ => self.pairs(),
            }
        }
    }

    #[inline(always)]
    unsafe fn pairs(&mut self) -> [[S::F; V]; 2] {
        unsafe {
            let (mut units, mut rest) = ([S::splat(0.0); V], [S::splat(0.0); V]);
            S::prefetch(self.at.wrapping_add(1024).cast());
            for j in 0..V {
                let pair = S::words(self.at.add(j * S::LANES));
                let (scale, bias) = (S::halves(pair), S::halves(S::right(pair, 16)));
                units[j] = S::mul(scale, S::splat(self.meaning.unit));
                rest[j] = S::mul(scale, S::sub(S::splat(self.meaning.level), bias));
            }
            self.at = self.at.wrapping_add(PANEL);
            [units, rest]
        }
    }

    #[inline(always)]
    unsafe fn nested(&mut self, nested: Nested) -> [[S::F; V]; 2] {
        let per_word = nested.per_word();
        let i = self.group % nested.groups();
        unsafe {
            if i == 0 {
                self.halves(nested);
            }
            if i.is_multiple_of(per_word) {
                S::prefetch(self.integers.wrapping_add(i / per_word * PANEL + 1024).cast());
                for j in 0..V {
                    let word = |row: usize| S::words(self.integers.add(row * PANEL + j * S::LANES));
                    self.entries[j] = match i / per_word {
                        3 if nested.is_six() => {
                            let high = S::or(S::right(word(0), 24), S::left(S::right(word(1), 24), 8));
                            S::or(high, S::left(S::right(word(2), 24), 16))
                        }
                        row => word(row),
                    };
                }
            }
            self.group += 1;
            if i + 1 == nested.groups() {
                self.integers = self.integers.wrapping_add(nested.words() * PANEL);
            }
            let (mut units, mut rest) = ([S::splat(0.0); V], [S::splat(0.0); V]);
            for j in 0..V {
                let entry = self.entries[j];
                self.entries[j] = S::right(entry, nested.entry as usize);
                let width = nested.scale_bits();
                let low = S::and(entry, (1 << width) - 1);
                if nested.minima {
                    let high = S::and(S::right(entry, width as usize), (1 << width) - 1);
                    units[j] = S::mul(self.scale[j], S::integers(low));
                    rest[j] = S::mul(self.minimum[j], S::integers(high));
                } else {
                    // 6 bits are stored with an offset, 8 bits in two's complement.
                    let (flip, middle) = if nested.is_six() { (0, 32.0) } else { (0x80, 128.0) };
                    let integer = S::sub(S::integers(S::xor(low, flip)), S::splat(middle));
                    units[j] = S::mul(self.scale[j], integer);
                    rest[j] = S::mul(units[j], self.minimum[j]);
                }
            }
            [units, rest]
        }
    }

    /// Reads the halves of a block. Without minima, the weight of integer 0 is the same multiple of
    /// each distance.
    #[inline(always)]
    unsafe fn halves(&mut self, nested: Nested) {
        // A power of two.
        let unit = self.meaning.unit * (1u32 << (BITS - 1)) as f32;
        let block = self.group / nested.groups();
        unsafe {
            for j in 0..V {
                let row = if nested.minima { block } else { block / 2 };
                let word = S::words(self.at.add(row * PANEL + j * S::LANES));
                let (scale, minimum) = if nested.minima {
                    let dmin = S::halves(S::right(word, 16));
                    (S::halves(word), S::mul(dmin, S::splat(-1.0 / UNIT)))
                } else {
                    let scale = S::halves(S::right(word, 16 * (block % 2)));
                    (scale, S::splat(-nested.zero() / unit))
                };
                self.scale[j] = S::mul(scale, S::splat(unit / UNIT));
                self.minimum[j] = minimum;
            }
        }
    }
}

/// Decodes the scales of a panel: for each group 16 distances, and 16 weights of integer 0. The
/// same operations as a single row's.
pub struct DecodeScales<'a> {
    pub format: Format,
    pub scales: &'a [u32],
    pub k: usize,
    pub meaning: Meaning,
    pub out: &'a mut [f32],
}

impl DecodeScales<'_> {
    #[inline(always)]
    unsafe fn decode<S: Words, const BITS: usize, const NESTED: bool>(self) {
        for c in (0..PANEL).step_by(S::LANES) {
            // SAFETY: the panel has the scales of its groups, and vectors of columns fill it.
            unsafe {
                let at = self.scales.as_ptr().wrapping_add(c);
                let mut reader = Reader::<S, BITS, NESTED, 1>::new(at, self.k, self.meaning);
                for out in self.out.as_chunks_mut::<{ 2 * PANEL }>().0 {
                    let [[unit], [rest]] = reader.next();
                    S::store(out.as_mut_ptr().add(c), unit);
                    S::store(out.as_mut_ptr().add(PANEL + c), rest);
                }
            }
        }
    }
}

impl WordsJob for DecodeScales<'_> {
    #[inline(always)]
    unsafe fn run<S: Words>(self) {
        let groups = self.out.len() / (2 * PANEL);
        assert!(
            groups <= self.k.div_ceil(self.format.group)
                && self.scales.len() >= self.format.scale_rows(self.k) * PANEL,
            "scales of {groups} groups of {} weights",
            self.k
        );
        unsafe {
            match (self.format.scales, self.format.bits) {
                (Scales::Pairs, _) => self.decode::<S, 8, false>(),
                (Scales::Nested(_), Bits::Two) => self.decode::<S, 2, true>(),
                (Scales::Nested(_), Bits::Three) => self.decode::<S, 3, true>(),
                (Scales::Nested(_), Bits::Four) => self.decode::<S, 4, true>(),
                (Scales::Nested(_), Bits::Five) => self.decode::<S, 5, true>(),
                (Scales::Nested(_), _) => self.decode::<S, 6, true>(),
            }
        }
    }
}
