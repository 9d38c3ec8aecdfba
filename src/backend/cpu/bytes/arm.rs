//! NEON with and without byte dot products.

use super::{Bytes, Job};
use crate::backend::cpu::simd::intrinsics;
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON without dot products.
#[derive(Clone, Copy)]
pub struct Neon;
/// NEON with `sdot`.
#[derive(Clone, Copy)]
pub struct NeonDot;

/// Adds the dot product of four bytes to each lane. Inline assembly, because the intrinsic is
/// unstable.
/// # Safety
/// The processor must support the instruction.
#[inline(always)]
pub unsafe fn sdot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    unsafe {
        asm!(
            ".arch_extension dotprod", "sdot {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b, options(pure, nomem, nostack)
        );
    }
    out
}

/// As [`sdot`], without that instruction.
#[inline(always)]
unsafe fn products(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: all processors have these instructions.
    unsafe {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        let high = vpaddlq_s16(vmull_high_s8(a, b));
        vaddq_s32(sum, vpaddq_s32(low, high))
    }
}

/// Implements [`Bytes`] with this dot product.
macro_rules! neon {
    ($name:ident, $rows:literal, $dot:ident) => {
        impl Bytes for $name {
            const LANES: usize = 4;
            const ROWS: usize = $rows;
            const FLIP: u32 = 0;
            const STEP: usize = 1;
            type I = int32x4_t;
            type F = float32x4_t;
            type B = int8x16_t;
            type W = int8x16_t;
            type X = int8x16_t;
            intrinsics! {
                splat(v: i32) -> int32x4_t = vdupq_n_s32(v);
                load(at: *const i32) -> int32x4_t = vld1q_s32(at);
                store(at: *mut i32, v: int32x4_t) -> () = vst1q_s32(at, v);
                widen(at: *const i8) -> int32x4_t = {
                    let bytes = at.cast::<[i8; 4]>().read_unaligned();
                    let v = vcreate_s8(u64::from(u32::from_le_bytes(bytes.map(i8::cast_unsigned))));
                    vmovl_s16(vget_low_s16(vmovl_s8(v)))
                };
                add(a: int32x4_t, b: int32x4_t) -> int32x4_t = vaddq_s32(a, b);
                sub(a: int32x4_t, b: int32x4_t) -> int32x4_t = vsubq_s32(a, b);
                mul(a: int32x4_t, b: int32x4_t) -> int32x4_t = vmulq_s32(a, b);
                load_floats(at: *const f32) -> float32x4_t = vld1q_f32(at);
                load_bytes(at: *const u8) -> int8x16_t = vld1q_s8(at.cast());
                store_bytes(at: *mut u8, v: int8x16_t) -> () = vst1q_s8(at.cast(), v);
                flip(v: int8x16_t) -> int8x16_t = v;
                weights(words: int32x4_t) -> int8x16_t = vreinterpretq_s8_s32(words);
                broadcast(at: *const u32) -> int8x16_t = vreinterpretq_s8_u32(vdupq_n_u32(at.read()));
                activations(words: int32x4_t) -> int8x16_t = vreinterpretq_s8_s32(words);
                dot(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t = $dot(sum, w, x);
                interleave(v: [int8x16_t; 4]) -> [int32x4_t; 4] = {
                    let pairs = |a, b| vreinterpretq_s16_s8(if b { vzip2q_s8(v[a], v[a + 1]) } else { vzip1q_s8(v[a], v[a + 1]) });
                    let ([a, c], [b, d]) = ([pairs(0, false), pairs(0, true)], [pairs(2, false), pairs(2, true)]);
                    [vzip1q_s16(a, b), vzip2q_s16(a, b), vzip1q_s16(c, d), vzip2q_s16(c, d)].map(|v| vreinterpretq_s32_s16(v))
                };
                scaled(sum: int32x4_t, factor: float32x4_t) -> int32x4_t = {
                    vcvtnq_s32_f32(vmulq_f32(vcvtq_f32_s32(sum), factor))
                };
                shifted(x: int32x4_t, n: int32x4_t) -> int32x4_t = vqshlq_s32(x, n);
                doubling_high(a: int32x4_t, b: int32x4_t) -> int32x4_t = vqrdmulhq_s32(a, b);
                divided(x: int32x4_t, n: int32x4_t) -> int32x4_t = {
                    // `vrshl` rounds ties upward. Subtracting 1 from negative x first rounds them
                    // away from zero.
                    let right = vnegq_s32(n);
                    let below = vshrq_n_s32::<31>(vandq_s32(x, right));
                    vrshlq_s32(vqaddq_s32(x, below), right)
                };
                max(a: int32x4_t, b: int32x4_t) -> int32x4_t = vmaxq_s32(a, b);
                narrow(v: [int32x4_t; 4], limits: &[int32x4_t; 3]) -> int8x16_t = {
                    let zero = vreinterpretq_s16_s32(limits[0]);
                    let a = vqaddq_s16(vcombine_s16(vqmovn_s32(v[0]), vqmovn_s32(v[1])), zero);
                    let b = vqaddq_s16(vcombine_s16(vqmovn_s32(v[2]), vqmovn_s32(v[3])), zero);
                    let v = vcombine_s8(vqmovn_s16(a), vqmovn_s16(b));
                    vminq_s8(vmaxq_s8(v, vreinterpretq_s8_s32(limits[1])), vreinterpretq_s8_s32(limits[2]))
                };
                in_order(v: int8x16_t) -> int8x16_t = v;
                lookup(table: *const u8, v: int8x16_t) -> int8x16_t = {
                    let quarter = |i: usize| vld1q_u8_x4(table.add(64 * i));
                    // Positions outside of a quarter select nothing.
                    let at = veorq_u8(vreinterpretq_u8_s8(v), vdupq_n_u8(0x80));
                    let mut y = vqtbl4q_u8(quarter(0), at);
                    y = vqtbx4q_u8(y, quarter(1), vsubq_u8(at, vdupq_n_u8(64)));
                    y = vqtbx4q_u8(y, quarter(2), vsubq_u8(at, vdupq_n_u8(128)));
                    y = vqtbx4q_u8(y, quarter(3), vsubq_u8(at, vdupq_n_u8(192)));
                    vreinterpretq_s8_u8(y)
                };
            }
            #[inline(always)]
            unsafe fn store_block(at: *mut u8, v: int8x16_t, _: usize) {
                unsafe { Self::store_bytes(at, v) }
            }
            #[inline(never)]
            unsafe fn call<J: Job>(job: J) -> J::Out {
                unsafe { job.run::<Self>() }
            }
        }
    };
}

neon!(Neon, 4, products);
neon!(NeonDot, 6, sdot);
