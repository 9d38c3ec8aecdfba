//! Portable Rust: arrays that the compiler may vectorize.

use super::{Bytes, Job};
use std::array::from_fn;

/// Vectors of four words.
#[derive(Clone, Copy)]
pub struct Portable;

/// The signed bytes of a word.
#[inline(always)]
fn signed(word: i32) -> [i8; 4] {
    word.to_le_bytes().map(u8::cast_signed)
}

impl Bytes for Portable {
    const LANES: usize = 4;
    const ROWS: usize = 2;
    const FLIP: u32 = 0;
    const STEP: usize = 1;
    type I = [i32; 4];
    type F = [f32; 4];
    type B = [i8; 16];
    type W = [i32; 4];
    type X = [i32; 4];

    #[inline(always)]
    unsafe fn splat(v: i32) -> [i32; 4] {
        [v; 4]
    }
    #[inline(always)]
    unsafe fn load(at: *const i32) -> [i32; 4] {
        unsafe { at.cast::<[i32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(at: *mut i32, v: [i32; 4]) {
        unsafe { at.cast::<[i32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn widen(at: *const i8) -> [i32; 4] {
        unsafe { at.cast::<[i8; 4]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn add(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn sub(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    unsafe fn mul(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline(always)]
    unsafe fn load_floats(at: *const f32) -> [f32; 4] {
        unsafe { at.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_bytes(at: *const u8) -> [i8; 16] {
        unsafe { at.cast::<[i8; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_bytes(at: *mut u8, v: [i8; 16]) {
        unsafe { at.cast::<[i8; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn flip(v: [i8; 16]) -> [i8; 16] {
        v
    }
    #[inline(always)]
    unsafe fn store_block(at: *mut u8, v: [i8; 16], _: usize) {
        unsafe { at.cast::<[i8; 16]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn weights(words: [i32; 4]) -> [i32; 4] {
        words
    }
    #[inline(always)]
    unsafe fn broadcast(at: *const u32) -> [i32; 4] {
        [unsafe { at.read() }.cast_signed(); 4]
    }
    #[inline(always)]
    unsafe fn activations(words: [i32; 4]) -> [i32; 4] {
        words
    }
    #[inline(always)]
    unsafe fn dot(sum: [i32; 4], w: [i32; 4], x: [i32; 4]) -> [i32; 4] {
        from_fn(|i| {
            let (w, x) = (signed(w[i]), signed(x[i]));
            let products: [i32; 4] = from_fn(|b| i32::from(w[b]) * i32::from(x[b]));
            products.iter().fold(sum[i], |s, p| s.wrapping_add(*p))
        })
    }
    #[inline(always)]
    unsafe fn interleave(v: [[i8; 16]; 4]) -> [[i32; 4]; 4] {
        from_fn(|q| from_fn(|i| i32::from_le_bytes(from_fn(|t| v[t][4 * q + i].cast_unsigned()))))
    }
    #[inline(always)]
    unsafe fn scaled(sum: [i32; 4], factor: [f32; 4]) -> [i32; 4] {
        from_fn(|i| super::scaled(sum[i], factor[i]))
    }
    #[inline(always)]
    unsafe fn shifted(x: [i32; 4], n: [i32; 4]) -> [i32; 4] {
        from_fn(|i| {
            let wide = i64::from(x[i]) << (n[i] & 31);
            wide.clamp(i32::MIN.into(), i32::MAX.into()) as i32
        })
    }
    #[inline(always)]
    unsafe fn doubling_high(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        from_fn(|i| ((i64::from(a[i]) * i64::from(b[i]) + (1 << 30)) >> 31) as i32)
    }
    #[inline(always)]
    unsafe fn divided(x: [i32; 4], n: [i32; 4]) -> [i32; 4] {
        from_fn(|i| super::divided(x[i], n[i] & 31))
    }
    #[inline(always)]
    unsafe fn max(a: [i32; 4], b: [i32; 4]) -> [i32; 4] {
        from_fn(|i| a[i].max(b[i]))
    }
    #[inline(always)]
    unsafe fn narrow(v: [[i32; 4]; 4], limits: &[[i32; 4]; 3]) -> [i8; 16] {
        let zero = i32::from(limits[0][0] as i16);
        let [low, high] = [limits[1][0], limits[2][0]].map(|v| i32::from(v as i8));
        from_fn(|i| v[i / 4][i % 4].saturating_add(zero).max(low).min(high) as i8)
    }
    #[inline(always)]
    unsafe fn in_order(v: [i8; 16]) -> [i8; 16] {
        v
    }
    #[inline(always)]
    unsafe fn lookup(table: *const u8, v: [i8; 16]) -> [i8; 16] {
        v.map(|i| unsafe { table.add(usize::from(i.cast_unsigned() ^ 0x80)).read() }.cast_signed())
    }
    #[inline(never)]
    unsafe fn call<J: Job>(job: J) -> J::Out {
        unsafe { job.run::<Self>() }
    }
}
