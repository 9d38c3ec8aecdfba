//! Makes model folders that `transformer-lite` runs: downloads from the Hugging Face Hub,
//! conversion of GGUF files and checkpoints, and quantization.
//!
//! * [`gguf`], [`checkpoint`]: convert GGUF files and Hugging Face checkpoints;
//! * [`source`]: converts either to a folder that the caller names;
//! * [`models`]: the models folder, and downloads from the Hub;
//! * [`quantize`]: quantizes the weights of a model folder; [`calibrate`]: measures the activations
//!   that some of its methods need;
//! * [`int8`]: quantizes weights and activations to 8-bit integers;
//! * [`families`]: what distinguishes the supported families of decoders;
//! * [`decoders`]: known models, without weights or with random ones.
//!
//! The feature `hub`, on by default, downloads models; without it the crate has no HTTP.
#![warn(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unreachable,
    clippy::unwrap_used
)]
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
mod builder;
pub mod calibrate;
pub mod checkpoint;
pub mod decoders;
pub mod families;
pub mod gguf;
pub mod int8;
mod lock;
mod memory;
pub mod models;
pub mod new_folder;
pub mod quantize;
pub mod source;

pub use models::load;
