//! Weights of 2, 3, 5 and 6 bits as bytes.

use super::tile::PANEL;
use super::words::{self, Words, WordsJob, planes, step};
use crate::backend::cpu::args::{Memory, product};
use crate::backend::cpu::isa::Isa;
use crate::quant::Format;

/// Packed weights.
pub struct Matrix<'a> {
    pub codes: &'a [u32],
    /// Rows of scales.
    pub scales: &'a [u32],
}

impl Matrix<'_> {
    /// Whether memory holds the codes and scales of `n` columns of `k` weights, and those of a
    /// second matrix, if it has either.
    pub fn fit(first: [Memory; 2], second: [Option<Memory>; 2], [n, k]: [usize; 2], format: Format) -> bool {
        let bits = format.bits.count() as usize;
        let panels = n.div_ceil(PANEL);
        let holds = |[codes, scales]: [Memory; 2]| {
            codes.holds::<u32>(product(&[panels, PANEL, rows(bits, k)]))
                && scales.holds::<u32>(product(&[panels, PANEL, format.scale_rows(k)]))
        };
        let second = match second {
            [Some(codes), Some(scales)] => holds([codes, scales]),
            either => either.iter().all(Option::is_none),
        };
        second && k.is_multiple_of(format.k_step()) && holds(first)
    }

    /// `n` columns of `k` weights, in whole panels.
    ///
    /// # Safety
    /// Nobody writes the weights.
    pub unsafe fn new([codes, scales]: [Memory; 2], [n, k]: [usize; 2], format: Format) -> Self {
        let columns = n.next_multiple_of(PANEL);
        unsafe {
            Self {
                codes: &codes.slice()[..columns * rows(format.bits.count() as usize, k)],
                scales: &scales.slice()[..columns * format.scale_rows(k)],
            }
        }
    }
}

/// Words of a panel's column for weights up to `k`.
pub fn rows(bits: usize, k: usize) -> usize {
    k * bits / 32
}

/// Unpacks a panel.
pub struct Unpack<'a> {
    pub bits: usize,
    /// Whether bytes are in the order of 8-bit weights (0 2 1 3) and not of 4-bit ones (0 4 1 5).
    pub per4: bool,
    /// The words of the panel.
    pub panel: &'a [u32],
    /// Two rows of words per step.
    pub out: &'a mut [u32],
}

impl Unpack<'_> {
    /// # Safety
    /// The processor has the instruction set.
    pub unsafe fn run_on(self, isa: Isa) {
        let steps = self.out.len() / (2 * PANEL);
        assert!(
            steps * 8 * self.bits / 32 * PANEL <= self.panel.len(),
            "{steps} steps"
        );
        unsafe { words::run(isa, self) };
    }

    /// # Safety
    /// As for [`Words`].
    #[inline(always)]
    unsafe fn steps<S: Words, const BITS: usize>(self, places: [[usize; 2]; 2]) {
        let [high, low] = const { planes(BITS) };
        for (i, out) in self.out.chunks_exact_mut(2 * PANEL).enumerate() {
            let ahead = self.panel.as_ptr().wrapping_add(i * BITS * PANEL / 4 + 1024);
            S::prefetch(ahead.cast());
            if BITS > 4 {
                S::prefetch(ahead.wrapping_add(PANEL).cast());
            }
            for c in (0..PANEL).step_by(S::LANES) {
                // SAFETY: the panel has this step, and `out` two rows.
                unsafe {
                    let words = step::<S, BITS>(self.panel.as_ptr().add(c), i, false);
                    for (row, places) in places.into_iter().enumerate() {
                        let mut bytes = S::left(spread::<S>(words[0], high, places), low);
                        if low > 0 {
                            bytes = S::or(bytes, spread::<S>(words[1], low, places));
                        }
                        S::store_words(out.as_mut_ptr().add(row * PANEL + c), bytes);
                    }
                }
            }
        }
    }
}

/// Fields `a` and `b` of `width` bits of both halves of words as the low and the high bytes of the
/// halves. Field 0 starts at bit 0.
#[inline(always)]
unsafe fn spread<S: Words>(word: S::U, width: usize, [a, b]: [usize; 2]) -> S::U {
    let one = (1u32 << width) - 1;
    unsafe {
        let low = S::and(S::right(word, a * width), one * 0x0001_0001);
        let moved = if b * width > 8 {
            S::right(word, b * width - 8)
        } else {
            S::left(word, 8 - b * width)
        };
        S::or(low, S::and(moved, one * 0x0100_0100))
    }
}

impl WordsJob for Unpack<'_> {
    #[inline(always)]
    unsafe fn run<S: Words>(self) {
        // Field j is weight 2j in the low half of a word, and weight 2j + 1 in the high half.
        const PER4: [[usize; 2]; 2] = [[0, 1], [2, 3]];
        const PER8: [[usize; 2]; 2] = [[0, 2], [1, 3]];
        unsafe {
            match (self.bits, self.per4) {
                (2, true) => self.steps::<S, 2>(PER4),
                (2, false) => self.steps::<S, 2>(PER8),
                (3, true) => self.steps::<S, 3>(PER4),
                (3, false) => self.steps::<S, 3>(PER8),
                (5, true) => self.steps::<S, 5>(PER4),
                (5, false) => self.steps::<S, 5>(PER8),
                (_, true) => self.steps::<S, 6>(PER4),
                (_, false) => self.steps::<S, 6>(PER8),
            }
        }
    }
}
