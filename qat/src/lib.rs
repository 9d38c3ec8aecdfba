//! Trains ONNX networks in floats, or with fake quantization so that they lose little accuracy when
//! [Transformer-Lite](transformer_lite) runs them with 8-bit integers (*Integer-Arithmetic-Only
//! Inference*, Jacob et al., 2018, "the paper" here). `docs/qat.md` is the user's guide.
//!
//! ```text
//! model.onnx --Network--> burn tensors --Trainer--> parameters, ranges --Integers--> int8 model.onnx
//! ```
//!
//! * [`network`]: a walker from the engine's graph to `burn` tensors; [`op`] has the operators;
//! * [`fake`]: fake quantization;
//! * [`data`], [`arch`]: labelled pictures, and built-in architectures;
//! * [`task`]: what a network learns, its loss and its score;
//! * [`train`], [`optimizer`], [`run`], [`checkpoint`]: steps, and runs on disk that can be resumed;
//! * [`llm`]: language models;
//! * [`export`], [`evaluate`]: writes the result, and runs it in the engine.
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

pub mod arch;
pub mod checkpoint;
pub mod data;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod fake;
pub mod llm;
pub mod network;
pub mod op;
pub mod optimizer;
pub mod page;
pub mod run;
pub mod task;
pub mod train;
pub mod value;

pub use error::{Error, Result};
