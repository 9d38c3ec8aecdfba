//! Plain Rust, which compilers make vectors of.

use super::dot::{Multiply, tiles};
use super::row::row;
use super::tile::{Call, Tile, tile};
use crate::backend::cpu::simd;

/// Activations of `LANE` bits.
#[derive(Clone, Copy)]
pub struct Portable<const LANE: usize>;

impl<const LANE: usize> Multiply for Portable<LANE> {
    type S = simd::Portable;
    type Sum = [i32; 4];
    const LANE: usize = LANE;
    tiles!(; 4; 4: 2);

    #[inline(always)]
    unsafe fn zero() -> [i32; 4] {
        [0; 4]
    }

    #[inline(always)]
    unsafe fn madd(mut sum: [i32; 4], weights: [u32; 4], x: [u32; 4]) -> [i32; 4] {
        for at in (0..32).step_by(LANE) {
            for ((sum, weight), x) in sum.iter_mut().zip(weights).zip(x) {
                let weight = (weight >> at & (u32::MAX >> (32 - LANE))).cast_signed();
                *sum += weight * ((x << (32 - LANE - at)).cast_signed() >> (32 - LANE));
            }
        }
        sum
    }

    #[inline(always)]
    unsafe fn add(total: [i32; 4], sum: [i32; 4], shift: u32) -> [i32; 4] {
        std::array::from_fn(|i| total[i] + (sum[i] << shift))
    }

    #[inline(always)]
    unsafe fn float(total: [i32; 4]) -> [f32; 4] {
        total.map(|v| v as f32)
    }
}
