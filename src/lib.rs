//! Transformer-Lite runs ONNX models, above all language models, on phone and desktop GPUs through
//! OpenCL and WGSL.
//!
//! ```text
//! model.onnx --import--> Graph --passes--> Graph --compile--> Plan --Executor--> a device
//!                          \--Interpreter (the reference, and `--backend host`)
//! ```
//!
//! * Shapes are symbolic: `batch`, `sequence` and `past` stay symbols from import to the parameters
//!   of a kernel.
//! * A [`plan::Plan`] is made once per graph and device. Only kernel parameters and grid sizes
//!   change between runs.
//! * Weights may be 4-bit ([`quant`]); activations and the KV cache are stored in 16 bits.
//! * The KV cache is state of an [`executor::Executor`]: it is appended to in place, never copied.
//! * Every kernel exists in OpenCL C and in WGSL; [`graph::op::Op::eval`] on the host is the
//!   reference for both.
//!
//! # Generating text
//!
//! A model is a folder with `model.onnx`, `tokenizer.json` and the configuration files that
//! exporters write next to them.
//!
//! ```no_run
//! use transformer_lite::llm::{GenerateOptions, LoadOptions, Message, Model};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let model = Model::load("smollm2-e0m4", &LoadOptions::default())?;
//!     let mut session = model.session()?;
//!     let question = [Message::user("Why is the sky blue?")];
//!     for piece in session.generate(&question, &GenerateOptions::default())? {
//!         print!("{}", piece?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! A [`Model`](llm::Model) holds weights, kernels, tokenizer and chat template. Its
//! [`Session`](llm::Session)s share them; each has its own KV cache.
//! [`LoadOptions`](llm::LoadOptions) select the device and the context length, a
//! [`Sampler`](llm::Sampler) chooses tokens, and [`GenerateOptions`](llm::GenerateOptions) set when
//! an answer ends; their [`Cancel`](llm::Cancel) stops it from another thread. Models and sessions
//! can be sent to any thread; commands to one device are serialized. A
//! [`Conversation`](llm::Conversation) keeps the messages of a session. Every
//! [`Error`](error::Error) names its place, and [`Error::kind`](error::Error::kind) classifies it
//! for programs.
//!
//! At a lower level, a [`Generator`](llm::Generator) draws tokens from any
//! [`LanguageModel`](llm::LanguageModel), a trait with two methods and three sizes. [`capi`] is the
//! interface for C, with the header `include/tlite.h`.
//!
//! # Modules, in the order of the data flow
//!
//! * [`gguf`], [`checkpoint`]: convert GGUF files and Hugging Face checkpoints to model folders;
//! * [`models`]: the models folder, and downloads from the Hugging Face Hub;
//! * [`shape`]: symbolic integers, shapes, and partially known values;
//! * [`graph`]: operators, import of ONNX files, passes, the host interpreter;
//! * [`quant`]: the E0M weight formats;
//! * [`plan`]: the static plan of a graph for a device;
//! * [`backend`]: OpenCL and wgpu behind one trait, and descriptions of the kernels;
//! * [`cache`]: the disk cache that speeds up later starts;
//! * [`executor`]: runs plans on a device;
//! * [`selftest`]: checks that kernels compute correctly on a device;
//! * [`runner`]: runs any model, tensors in, tensors out; [`files`]: tensors and images from files;
//! * [`placement`]: selects backend and device;
//! * [`llm`]: models and sessions; tokens in, tokens out;
//! * [`decoders`]: graphs of known architectures, without weights or with random ones;
//! * [`inspect`]: what a model needs to run, from its file alone;
//! * [`probe`], [`roofline`]: measured device limits, and lower bounds on run time;
//! * [`capi`]: the C interface;
//! * [`cli`]: the command `tlite`;
//! * [`mod@tensor`], [`mod@error`]: host tensors, and errors that name their place.
//!
//! # Features
//!
//! `opencl` and `wgpu`, both on by default, compile the backends in. Without either, models run in
//! the interpreter. The OpenCL library is loaded at run time: a build with `opencl` also runs on
//! machines that have none. `hub`, also on by default, downloads models; without it the library has
//! no HTTP.
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
pub mod backend;
pub mod cache;
pub mod capi;
pub mod checkpoint;
pub mod cli;
pub mod decoders;
pub mod error;
pub mod executor;
pub mod files;
pub mod gguf;
pub mod graph;
pub mod inspect;
pub mod llm;
mod mapped;
pub mod models;
pub mod new_folder;
pub mod note;
mod parallel;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod quant;
pub mod roofline;
pub mod runner;
pub mod selftest;

pub mod shape;
pub mod tensor;
#[cfg(test)]
mod testing;
mod units;

/// The Rust examples of the documents, compiled as documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/library.md")]
    struct Library;
}
