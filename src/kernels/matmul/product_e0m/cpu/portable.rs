//! Plain Rust, which compilers make vectors of.

use super::form::{Codes, Form};
use super::tile::{self, Call, Dot, PANEL, Tile, by_height};
use half::f16;

/// Weights of 4 bits (`BYTES` false) or in bytes, with bytes (`WIDE` false) or 16-bit integers.
struct Plain<const BYTES: bool, const WIDE: bool>;

unsafe fn run<D: Dot<M>, const M: usize>(call: &Call) {
    // SAFETY: by the contract of `Tile`.
    unsafe { tile::tile::<D, M>(call) }
}

pub fn pick(form: Form, wide: bool, height: usize) -> Option<Tile> {
    type Four<const WIDE: bool> = Plain<false, WIDE>;
    type Eight<const WIDE: bool> = Plain<true, WIDE>;
    match (form.codes, wide) {
        (Codes::Four, false) => by_height!(run, Four<false>, height, 1 2),
        (Codes::Four, true) => by_height!(run, Four<true>, height, 1 2),
        (_, false) => by_height!(run, Eight<false>, height, 1 2),
        (_, true) => by_height!(run, Eight<true>, height, 1 2),
    }
}

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; PANEL] {
    std::array::from_fn(f)
}

/// Adds a weight times `x`.
#[inline(always)]
fn madd(sums: &mut [i32; PANEL], words: &[u32; PANEL], shift: usize, mask: u32, x: i32) {
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum += (word >> shift & mask).cast_signed() * x;
    }
}

/// The integers of a word, in order.
#[inline(always)]
fn integers<const WIDE: bool>(word: u32) -> [i32; 4] {
    if WIDE {
        [i32::from(word as i16), word.cast_signed() >> 16, 0, 0]
    } else {
        word.to_le_bytes().map(|b| i32::from(b.cast_signed()))
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "by the contract of the trait")]
impl<const M: usize, const BYTES: bool, const WIDE: bool> Dot<M> for Plain<BYTES, WIDE> {
    type F = [f32; PANEL];
    const COLUMNS: usize = PANEL;
    const CODES: usize = if BYTES { 2 * PANEL } else { PANEL };
    const WORDS: usize = if WIDE { 4 } else { 2 };

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self::F {
        [v; PANEL]
    }
    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self::F {
        unsafe { at.cast::<Self::F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(at: *mut f32, v: Self::F) {
        unsafe { at.cast::<Self::F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn halves(at: *const u32) -> [Self::F; 2] {
        let words = unsafe { at.cast::<[u32; PANEL]>().read_unaligned() };
        let half = |bits: u32| f16::from_bits(bits as u16).to_f32();
        [each(|i| half(words[i])), each(|i| half(words[i] >> 16))]
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        each(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn dot(codes: *const u32, x: *const u32, steps: usize) -> [Self::F; M] {
        let mut sums = [[0i32; PANEL]; M];
        let rows = if BYTES { 2 * steps } else { steps };
        let (width, mask) = if BYTES { (8, 255) } else { (4, 15) };
        let per_row = <Self as Dot<M>>::WORDS * steps / rows;
        for row in 0..rows {
            let words = unsafe { codes.add(row * PANEL).cast::<[u32; PANEL]>().read_unaligned() };
            for (m, sums) in sums.iter_mut().enumerate() {
                for i in 0..per_row {
                    let x = integers::<WIDE>(unsafe { x.add((row * per_row + i) * M + m).read() });
                    if WIDE {
                        // Two weights at the same place of both halves.
                        madd(sums, &words, i * width, mask, x[0]);
                        madd(sums, &words, i * width + 16, mask, x[1]);
                        continue;
                    }
                    for (byte, x) in x.into_iter().enumerate() {
                        madd(sums, &words, 8 * byte + i * width, mask, x);
                    }
                }
            }
        }
        sums.map(|sums| each(|i| sums[i] as f32))
    }
}
