//! Weight quantization: the E0M formats, and methods that choose their numbers.
//!
//! # E0Mx
//!
//! A weight takes x bits, all of them the top of a float's fraction (paper, section 2.3; x is 2, 3, 4, 5, 6 or 8 here). For a group of
//! weights along K, `w1 = w / scale + bias` lies in `[2, 4)`, where all floats share sign and exponent. The code is the top x fraction
//! bits of `w1`, rounded by the next bit: `min(y1 + y2, 2^x - 1)`. Back: `w1 = 2 + code * 2 / 2^x`, one shift and one OR on the bits of a half or
//! a float, then `w = scale * (w1 - bias)`. Scale and bias are halves; the bias is in the space of `w1`.
//!
//! Zero is exact where the bias is one of the `2^x` values of `w1`, that is, where its fraction bits below the code's are clear. The methods
//! see to that in every group that holds or straddles zero. Clearing moves `w1`, by up to a level, out of its
//! interval, so it is clamped before its bits are taken; the paper does not say so.
//!
//! Any affine grid of at most `2^x` levels, `w = s * (q - z)`, is a group of the format: scale `s * 2^x / 2` and bias
//! `2 + z * 2 / 2^x`, which is exact where halves hold both ([`affine`]). So matrices that other formats store as codes on such grids become
//! matrices of this one ([`Grids`]).
//!
//! # Layout of a matrix of K x N
//!
//! Codes are `u32[K * x / 32][N]`. The rows of words come in blocks of x, which hold 32 weights along K of each column. A code is cut into
//! planes of a power of two of bits, the highest bits first:
//!
//! | x | planes | K is a multiple of |
//! |---|---|---|
//! | 2 | 2 | 16 |
//! | 3 | 2, 1 | 32 |
//! | 4 | 4 | 8 |
//! | 5 | 4, 1 | 32 |
//! | 6 | 4, 2 | 32 |
//! | 8 | 8 | 4 |
//!
//! A plane of P bits takes P words of a block, the planes one after the other. Word r of a plane holds weights `32 / P * r ..` of the block;
//! its weight i is the P bits from bit `i / 2 * P + i % 2 * 16` on. So weights `2j` and `2j + 1` stand in the same place of the low and the
//! high half-word, and one mask makes both into halves; and every run of 8 weights, in each plane, is a byte or a part of it in
//! either half-word, which one shift brings to the same place: a kernel that walks in steps of 8 reads all formats alike. (E0M8 takes
//! 4 weights a word.)
//!
//! Scales are `f16[ceil(K / group)][N][2]`: scale, bias. The last group may be short. A group is a multiple of 8 weights. N is even.

pub mod awq;
mod bytes;
mod format;
pub mod gptq;
mod grid;
mod hessian;
mod int4;
mod method;
mod packed;
mod search;
#[cfg(test)]
mod tests;
mod transcode;

pub use bytes::to_bytes;
pub use format::{Affine, Bits, Plane, QuantError, affine, decode, encode};
pub use hessian::{Hessian, HessianError};
pub use int4::{Integers, int4_error};
pub use method::{ByGroup, ColumnMethod, Method, Scratch};
pub use packed::{Column, GROUP_STEP, Loss, PER_CHANNEL, Packed, decode_rows, group_size};
pub(crate) use packed::{code_at, place};
pub use transcode::{Grid, GridColumn, Grids, ReadColumn, by_group};
