//! Plain Rust, which compilers make vectors of.

use super::dot::{Multiply, Sums, rows, tiles};
use super::tile::{Call, Tile, tile};
use crate::backend::cpu::simd;
use crate::tensor::PANEL;

/// Activations of `LANE` bits.
#[derive(Clone, Copy)]
pub struct Portable<const LANE: usize>;

impl<const LANE: usize> Multiply for Portable<LANE> {
    type S = simd::Portable;
    type Sum = [i32; 4];
    const LANE: usize = LANE;
    tiles!(; 4: 1 2);

    #[inline(always)]
    unsafe fn zero() -> [i32; 4] {
        [0; 4]
    }

    #[inline(always)]
    unsafe fn step<const BITS: usize, const M: usize, const V: usize>(
        sums: &mut Sums<Self, M, V>,
        codes: *const u32,
        x: *const u32,
        _: usize,
    ) {
        let (width, mask) = if BITS == 4 { (4, 15) } else { (8, 255) };
        let per_row = LANE / width;
        for row in 0..rows(BITS) {
            let words = unsafe { codes.add(row * PANEL).cast::<[u32; PANEL]>().read_unaligned() };
            for (m, sums) in sums[0].iter_mut().enumerate() {
                for i in 0..per_row {
                    let x = unsafe { x.add((row * per_row + i) * M + m).read() };
                    for at in (0..32).step_by(LANE) {
                        let x = (x << (32 - LANE - at)).cast_signed() >> (32 - LANE);
                        for (sum, word) in sums.as_flattened_mut().iter_mut().zip(&words) {
                            *sum += (word >> (at + i * width) & mask).cast_signed() * x;
                        }
                    }
                }
            }
        }
    }

    /// Not used: `step` multiplies all columns.
    #[inline(always)]
    unsafe fn madd(sum: [i32; 4], _: [u32; 4], _: [u32; 4]) -> [i32; 4] {
        sum
    }

    #[inline(always)]
    unsafe fn add(total: [i32; 4], sum: [i32; 4], _: u32) -> [i32; 4] {
        std::array::from_fn(|i| total[i] + sum[i])
    }

    #[inline(always)]
    unsafe fn float(total: [i32; 4]) -> [f32; 4] {
        total.map(|v| v as f32)
    }
}
