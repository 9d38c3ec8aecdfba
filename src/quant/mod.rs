//! Weight quantization: the E0M formats, and the methods that choose scales and biases.
//!
//! # E0Mx
//!
//! E0Mx is group-wise x-bit quantization with an fp16 scale and bias per group. A weight takes x
//! bits, the top of a float's fraction (paper, section 2.3; here x is 2, 3, 4, 5, 6 or 8). For a
//! group of weights along K, `w1 = w / scale + bias` lies in `[2, 4)`, where all floats have the
//! same sign and exponent. The quantized value is the top x fraction bits of `w1`, rounded by the
//! next bit: `min(y1 + y2, 2^x - 1)`. To decode: `w1 = 2 + value * 2 / 2^x`, one shift and one OR
//! on the bits of an f16 or f32, then `w = scale * (w1 - bias)`. Scale and bias are f16; the bias
//! is in the space of `w1`.
//!
//! Zero is exact if the bias is one of the `2^x` values of `w1`, that is, if its lower fraction
//! bits are clear. The methods ensure this in every group that contains or straddles zero. Clearing
//! the bits can move `w1` out of its interval by up to a level, so it is clamped before its bits
//! are taken; the paper does not mention this.
//!
//! Any affine grid of at most `2^x` levels, `w = s * (q - z)`, can be a group of the format, with
//! scale `s * 2^x / 2` and bias `2 + z * 2 / 2^x`. This is exact if f16 holds both ([`affine`]).
//! Matrices that other formats store on such grids can therefore be repacked ([`Grids`]).
//!
//! # Layout of a K x N matrix
//!
//! Quantized weights are `u32[K * x / 32][N]`. The rows of words form blocks of x rows, which hold
//! 32 weights along K of each column. A value is split into planes whose widths are powers of two,
//! highest bits first:
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
//! A plane of P bits takes P consecutive words of a block. Word r of a plane holds weights
//! `32 / P * r ..` of the block; its weight i is the P bits from bit `i / 2 * P + i % 2 * 16`.
//! Weights `2j` and `2j + 1` thus have the same position in the low and the high half-word, and one
//! mask turns both into f16. Every run of 8 weights, in each plane, is a byte or part of a byte in
//! each half-word, which one shift moves to the same position, so a kernel with k-steps of 8 reads
//! all formats alike. (E0M8 has 4 weights per word.)
//!
//! Scales are `f16[ceil(K / group)][N][2]`: scale, bias. The last group may be short. A group size
//! is a multiple of 8, and N is even.
//!
//! # Nested scales
//!
//! GGML's K-quants have two levels of scales, which this format keeps as they are. A block of 256
//! weights (GGML's super-block) has f16 factors d and dmin, and each of its groups has integers s
//! and m. A weight of value q is `(d * s) * (q - zero) - dmin * m`:
//!
//! | x | GGML | group | s | m | zero |
//! |---|---|---|---|---|---|
//! | 2 | `Q2_K` | 16 | 4 bits | 4 bits | 0 |
//! | 3 | `Q3_K` | 16 | 6 bits, minus 32 | | 4 |
//! | 4 | `Q4_K` | 32 | 6 bits | 6 bits | 0 |
//! | 5 | `Q5_K` | 32 | 6 bits | 6 bits | 0 |
//! | 6 | `Q6_K` | 16 | 8 bits, signed | | 32 |
//!
//! Scales are then `u32[rows][N]`. First come the rows of factors, each times 2^14 so that none is
//! subnormal: d and dmin of a block, or, without m, d of blocks 2i and 2i + 1. Factors from 4 on
//! cannot be stored. The integers follow, block by block. The entry of a group
//! is s in the low and m in the high bits. Entries of 8 bits fill four words. Of the 6-bit integers
//! of a block, the first twelve are in the low 24 bits of three words, four in each, and the last
//! four in the high bytes, the lowest first. K is a multiple of 256, and quantized weights have the
//! layout above.

pub mod awq;
mod bytes;
pub mod fixed;
mod format;
pub mod gptq;
mod grid;
mod hessian;
mod int4;
mod method;
pub mod nested;
mod packed;
mod search;
#[cfg(test)]
mod tests;
mod transcode;

pub use bytes::to_bytes;
pub use format::{Affine, Bits, Format, Plane, QuantError, Scales, affine, decode, encode};
pub use hessian::{Hessian, HessianError};
pub use int4::{Integers, int4_error};
pub use method::{ByGroup, ColumnMethod, Method, Scratch};
pub use packed::{Column, GROUP_STEP, Loss, PER_CHANNEL, Packed, PackedView, group_size, place, scale_words};
pub use transcode::{Grid, GridColumn, Grids, ReadColumn, by_group};
