//! Kernels, one file each: the descriptor with the arguments, and beside it the native kernel.
//!
//! The folders are groups, with the names of the operators' groups. The sources of GPU kernels have
//! the same groups and names in `cl/` and `shaders/`. Paths leave the group out:
//! `kernels::softmax` is in the folder `reduce`.
//!
//! # Safety of native kernels
//!
//! Before a kernel runs, its `fits` has compared the arguments with the memory of the operands. An
//! `unsafe` function may assume that each operand holds the elements that the arguments name, that
//! no other thread uses the results of its piece, and that the processor has the instruction set
//! `S`. Its pointers lead into those operands. A comment at a block says what it needs beyond that.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "native kernels convert between element types; sizes are those of memory"
)]
#![cfg_attr(
    feature = "cpu",
    expect(
        clippy::undocumented_unsafe_blocks,
        reason = "stated above, once for all kernels"
    )
)]

#[cfg(feature = "cpu")]
pub mod cpu;
pub mod dots;
pub mod windows;

/// The define of kernels of the integer domain that requantize with integers alone
/// ([`crate::quant::fixed`]).
pub const FIXED: &str = "FIXED";

/// The groups. Other modules use the kernels by their paths without the group.
#[path = "."]
#[expect(clippy::module_inception, reason = "some groups have the name of a kernel")]
mod groups {
    pub mod attention;
    pub mod conv;
    pub mod elementwise;
    pub mod matmul;
    pub mod movement;
    pub mod norm;
    pub mod probe;
    pub mod quantized;
    pub mod reduce;
}
pub use groups::{
    attention::*, conv::*, elementwise::*, matmul::*, movement::*, norm::*, probe::*, quantized::*, reduce::*,
};
