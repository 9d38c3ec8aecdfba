//! NEON without dot products: bytes with sums in 16 bits (as in appendix B of Jacob et al.,
//! "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"),
//! and 16-bit integers with sums in 32 bits. NEON with `sdot`, and with `smmla` for more than one
//! row; both multiply signed bytes.

use super::dot::{Multiply, Sums, operand, tiles};
use super::row::row;
use super::tile::{Call, Tile, tile};
use super::words::Words;
use crate::backend::cpu::bytes::arm::sdot;
use crate::backend::cpu::simd::{arm, intrinsics};
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON without dot products, with activations of `LANE` bits.
#[derive(Clone, Copy)]
pub struct Neon<const LANE: usize>;
/// `sdot`.
#[derive(Clone, Copy)]
pub struct NeonDot;
/// `smmla`: sums of a pair of rows have two columns of both each.
#[derive(Clone, Copy)]
pub struct NeonI8mm;

/// Adds the 2 x 2 dot products of two rows and two columns of eight bytes.
#[inline(always)]
unsafe fn smmla(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut out = sum;
    // SAFETY: the processor has the instruction.
    unsafe {
        asm!(
            ".arch_extension i8mm", "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) out, in(vreg) a, in(vreg) b, options(pure, nomem, nostack)
        );
    }
    out
}

impl<const LANE: usize> Multiply for Neon<LANE> {
    type S = arm::Neon;
    /// Pairs of lanes are added to one column in the end. With bytes, sums have 16 bits.
    type Sum = [int32x4_t; 2];
    const LANE: usize = LANE;
    const NARROW: usize = if LANE == 8 { 2 } else { 0 };
    const ONE_BY_ONE: bool = true;
    tiles!(; 4; 4: 2 3 4);
    intrinsics! {
        zero() -> [int32x4_t; 2] = [vdupq_n_s32(0); 2];
        madd(sum: [int32x4_t; 2], weights: uint32x4_t, x: uint32x4_t) -> [int32x4_t; 2] = if LANE == 8 {
            let (a, b) = (vreinterpretq_s8_u32(weights), vreinterpretq_s8_u32(x));
            let low = vmlal_s8(vreinterpretq_s16_s32(sum[0]), vget_low_s8(a), vget_low_s8(b));
            let high = vmlal_high_s8(vreinterpretq_s16_s32(sum[1]), a, b);
            [vreinterpretq_s32_s16(low), vreinterpretq_s32_s16(high)]
        } else {
            let (a, b) = (vreinterpretq_s16_u32(weights), vreinterpretq_s16_u32(x));
            [
                vmlal_s16(sum[0], vget_low_s16(a), vget_low_s16(b)),
                vmlal_high_s16(sum[1], a, b),
            ]
        };
        add(total: [int32x4_t; 2], sum: [int32x4_t; 2], shift: u32) -> [int32x4_t; 2] = {
            let mut out = total;
            for (out, sum) in out.iter_mut().zip(sum) {
                *out = match (LANE, shift) {
                    (8, 0) => vpadalq_s16(*out, vreinterpretq_s16_s32(sum)),
                    (8, _) => vmlaq_n_s32(*out, vpaddlq_s16(vreinterpretq_s16_s32(sum)), 1 << shift),
                    _ => vaddq_s32(*out, sum),
                };
            }
            out
        };
        float(total: [int32x4_t; 2]) -> float32x4_t = vcvtq_f32_s32(vpaddq_s32(total[0], total[1]));
    }
}

impl Multiply for NeonDot {
    type S = arm::Neon;
    type Sum = int32x4_t;
    const FLIP: u32 = 0x8080_8080;
    tiles!(; 4; 4: 2 3 4);
    intrinsics! {
        zero() -> int32x4_t = vdupq_n_s32(0);
        madd(sum: int32x4_t, weights: uint32x4_t, x: uint32x4_t) -> int32x4_t = {
            sdot(sum, vreinterpretq_s8_u32(weights), vreinterpretq_s8_u32(x))
        };
        add(total: int32x4_t, sum: int32x4_t, shift: u32) -> int32x4_t = vmlaq_n_s32(total, sum, 1 << shift);
        float(total: int32x4_t) -> float32x4_t = vcvtq_f32_s32(total);
    }
}

impl Multiply for NeonI8mm {
    type S = arm::Neon;
    type Sum = int32x4_t;
    const FLIP: u32 = NeonDot::FLIP;
    tiles!(; 4; 4: 2 4);
    intrinsics! {
        zero() -> int32x4_t = NeonDot::zero();
        madd(sum: int32x4_t, weights: uint32x4_t, x: uint32x4_t) -> int32x4_t = {
            smmla(sum, vreinterpretq_s8_u32(x), vreinterpretq_s8_u32(weights))
        };
        add(total: int32x4_t, sum: int32x4_t, shift: u32) -> int32x4_t = NeonDot::add(total, sum, shift);
        float(total: int32x4_t) -> float32x4_t = NeonDot::float(total);
    }

    #[inline(always)]
    unsafe fn step<const BITS: usize, const M: usize, const V: usize>(
        sums: &mut Sums<Self, M, V>,
        codes: *const u32,
        x: *const u32,
    ) {
        unsafe {
            for j in 0..V {
                let a = operand::<Self, BITS>(codes.add(4 * j), 0);
                let b = operand::<Self, BITS>(codes.add(4 * j), 1);
                let columns = [vzip1q_u32(a, b), vzip2q_u32(a, b)];
                for m in 0..M {
                    let x = Self::S::words(x.add(m / 2 * 4));
                    sums[0][m][j] = Self::madd(sums[0][m][j], columns[m % 2], x);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn floats<const M: usize, const V: usize>(totals: [[int32x4_t; V]; M]) -> [[float32x4_t; V]; M] {
        unsafe {
            let mut out = [[vdupq_n_f32(0.0); V]; M];
            for m in (0..M).step_by(2) {
                for j in 0..V {
                    // Columns 4j and 4j + 1 and the next two, of the first row and of the second.
                    let [a, b] = [m, m + 1].map(|m| vreinterpretq_s64_s32(totals[m][j]));
                    out[m][j] = Self::float(vreinterpretq_s32_s64(vzip1q_s64(a, b)));
                    out[m + 1][j] = Self::float(vreinterpretq_s32_s64(vzip2q_s64(a, b)));
                }
            }
            out
        }
    }
}
