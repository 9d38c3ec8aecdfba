//! Keys and values as caches store them.

use super::BLOCK;
use crate::backend::cpu::args::Memory;
use crate::backend::cpu::simd::Simd;
use half::f16;

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Floats,
    Halves,
    /// Signed bytes in words of four, and after them the scale of all.
    Bytes,
}

/// Rows of heads: `[batch, keys, kv_heads, dim]`.
#[derive(Clone, Copy)]
pub struct CacheRows {
    at: *const u8,
    pub stored: Stored,
    dim: usize,
    kv_heads: usize,
    keys: usize,
    ring: Option<usize>,
    /// For each block of keys, where it is in the cache, in blocks.
    pages: Option<*const u32>,
}

/// Rows of one head that stand in memory at equal distances.
#[derive(Clone, Copy)]
pub struct Run {
    pub at: *const u8,
    /// Bytes from one row to the next.
    pub step: usize,
    pub count: usize,
    /// Bytes from a row to the one expected at its place in the next block, modulo 2^64.
    pub ahead: usize,
    /// Bytes of such a row, to be read from memory; 0 if none is expected.
    pub bytes: usize,
}

impl CacheRows {
    pub fn new(
        m: Memory,
        stored: Stored,
        dim: usize,
        kv_heads: usize,
        keys: usize,
        ring: Option<usize>,
    ) -> Self {
        Self {
            at: m.as_ptr::<u8>(),
            stored,
            dim,
            kv_heads,
            keys,
            ring,
            pages: None,
        }
    }

    /// The keys of a sequence in pages, which are not negative; key j is in `pages[j / BLOCK]`.
    pub fn in_pages(self, pages: &[i32]) -> Self {
        Self {
            pages: Some(pages.as_ptr().cast()),
            ..self
        }
    }

    /// The first key of a block that contains `key`: the start of its page, or without pages the
    /// key itself.
    #[inline(always)]
    pub fn block_start(&self, key: usize) -> usize {
        match self.pages {
            Some(_) => key - key % BLOCK,
            None => key,
        }
    }

    /// Bytes of a row.
    #[inline(always)]
    fn bytes(&self) -> usize {
        match self.stored {
            Stored::Floats => 4 * self.dim,
            Stored::Halves => 2 * self.dim,
            Stored::Bytes => self.dim + 4,
        }
    }

    /// Whether a row has exactly `width` elements.
    #[inline(always)]
    pub fn is_whole(&self, width: usize) -> bool {
        self.dim == width
    }

    /// Keys for which memory has room, in each of `batch` sequences.
    pub fn room(&self, m: Memory, batch: usize) -> usize {
        let all = m.elements::<u8>() / self.bytes().saturating_mul(self.kv_heads).max(1);
        all.saturating_sub(batch.saturating_sub(1).saturating_mul(self.keys))
    }

    /// The rows of keys from `first` on, at most a block, before `end` and up to the end of the
    /// ring or page.
    /// # Safety
    /// There are pages for the keys from `first` to `end`.
    #[inline(always)]
    pub unsafe fn run(&self, batch: usize, kv: usize, first: usize, end: usize) -> Run {
        let (place, left, ahead) = match (self.pages, self.ring) {
            (Some(pages), _) => {
                // SAFETY: the table has a page for each key before `end`.
                let page = |key: usize| unsafe { *pages.add(key / BLOCK) } as usize;
                let (own, left) = (page(first), BLOCK - first % BLOCK);
                let next = (first + left < end).then(|| page(first + left));
                let ahead = next.map(|next| next.wrapping_sub(own).wrapping_mul(BLOCK));
                (own * BLOCK + first % BLOCK, left, ahead)
            }
            (None, Some(ring)) => (first % ring, ring - first % ring, Some(BLOCK)),
            (None, None) => (first, usize::MAX, Some(BLOCK)),
        };
        let at = ((batch * self.keys + place) * self.kv_heads + kv) * self.bytes();
        let step = self.kv_heads * self.bytes();
        Run {
            at: self.at.wrapping_add(at),
            step,
            count: (end - first).min(BLOCK).min(left),
            ahead: ahead.unwrap_or(0).wrapping_mul(step),
            bytes: ahead.map_or(0, |_| self.bytes()),
        }
    }

    /// Writes a row as floats, then zeros up to `width` elements.
    /// # Safety
    /// `at` is a row, and `width >= dim` floats can be written to `to`.
    #[inline(always)]
    pub unsafe fn decode<S: Simd>(&self, at: *const u8, to: *mut f32, width: usize) {
        let dim = self.dim;
        unsafe {
            match self.stored {
                Stored::Floats => std::ptr::copy_nonoverlapping(at.cast::<f32>(), to, dim),
                Stored::Halves => {
                    let at = at.cast::<f16>();
                    let whole = dim / S::LANES * S::LANES;
                    for i in (0..whole).step_by(S::LANES) {
                        S::store(to.add(i), S::load_f16(at.add(i)));
                    }
                    for i in whole..dim {
                        *to.add(i) = (*at.add(i)).to_f32();
                    }
                }
                Stored::Bytes => {
                    let scale = *at.add(dim).cast::<f32>();
                    let at = at.cast::<i8>();
                    for i in 0..dim {
                        *to.add(i) = f32::from(*at.add(i)) * scale;
                    }
                }
            }
            for i in dim..width {
                *to.add(i) = 0.0;
            }
        }
    }
}
