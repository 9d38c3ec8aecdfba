//! Windows of three rows, computed downward: each row of x is interleaved once.

use super::TAPS;
use super::tables::Set;
use crate::backend::cpu::bytes::{Arithmetic, Bytes};

/// Neighbouring channels of the windows of a column, of three rows and up to `K` columns.
pub struct Strip<const K: usize> {
    /// The taps of row 0, and the distances to those of the next row.
    pub taps: [*const u8; K],
    pub steps: [usize; K],
    /// The first row of the first window, and the number of rows; others are padding.
    pub first: isize,
    pub rows: isize,
    /// Number of windows.
    pub count: usize,
    pub y: *mut u8,
    /// Bytes from one result to the next one.
    pub pitch: usize,
    /// Bytes that are stored of a vector.
    pub size: usize,
}

impl<const K: usize> Strip<K> {
    /// Words of the taps of a row.
    /// # Safety
    /// As for `NativeKernel::run`.
    #[inline(always)]
    unsafe fn words<S: Bytes>(&self, row: isize, padding: S::I) -> [S::I; 4] {
        if row < 0 || row >= self.rows {
            return [padding; 4];
        }
        let row = row.cast_unsigned();
        unsafe {
            let mut taps = [S::load_bytes(self.taps[0]); TAPS];
            for (i, tap) in taps.iter_mut().enumerate() {
                let i = i.min(K - 1);
                *tap = S::flip(S::load_bytes(self.taps[i].add(row * self.steps[i])));
            }
            S::interleave(taps)
        }
    }

    /// # Safety
    /// As for `NativeKernel::run`.
    #[inline(always)]
    pub unsafe fn run<S: Bytes, A: Arithmetic, const SH: usize>(&self, set: &Set<S, A>, zero: i32) {
        unsafe {
            let padding =
                S::splat(((zero & 0xFF).wrapping_mul(0x0101_0101).cast_unsigned() ^ S::FLIP).cast_signed());
            let mut row = self.first;
            // Sums of the next window and, for stride 1, of the one after it.
            let mut next = set.dot(set.start, 0, self.words::<S>(row, padding));
            let mut after = next;
            if SH == 1 {
                let words = self.words::<S>(row + 1, padding);
                next = set.dot(next, 1, words);
                after = set.dot(set.start, 0, words);
            }
            let mut y = self.y;
            for _ in 0..self.count {
                let mut sums = next;
                if SH == 2 {
                    sums = set.dot(sums, 1, self.words::<S>(row + 1, padding));
                }
                let words = self.words::<S>(row + 2, padding);
                sums = set.dot(sums, 2, words);
                if SH == 1 {
                    next = set.dot(after, 1, words);
                    after = set.dot(set.start, 0, words);
                } else {
                    next = set.dot(set.start, 0, words);
                }
                set.put(sums, y, self.size);
                y = y.wrapping_add(self.pitch);
                row += SH.cast_signed();
            }
        }
    }
}
