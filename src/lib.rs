//! Transformer-Lite runs ONNX models, language models first, on phone and desktop GPUs: through OpenCL, and through WGSL.
//!
//! ```text
//! model.onnx --import--> Graph --passes--> Graph --compile--> Plan --Executor--> a device
//!                          \--Interpreter (the reference, and `--backend host`)
//! ```
//!
//! * Shapes are symbolic: `batch`, `sequence` and `past` stay names from import to the last parameter of a kernel.
//! * A [`plan::Plan`] is made once for a graph and a device. From run to run only parameters and grids change.
//! * Weights may be 4-bit ([`quant`]); activations and the KV cache are stored in 16 bits.
//! * The KV cache is state of a [`executor::Executor`]: appended to in place, never copied.
//! * Every kernel exists in OpenCL C and in WGSL; the reference of both is [`graph::op::Op::eval`] on the host.
//!
//! # Generating text
//!
//! A model is a folder with `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside them.
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
//! A [`Model`](llm::Model) holds weights, kernels, tokenizer and chat template. Its [`Session`](llm::Session)s share them; each has a KV cache
//! of its own. [`LoadOptions`](llm::LoadOptions) choose the device and the context, a [`Sampler`](llm::Sampler) the tokens,
//! [`GenerateOptions`](llm::GenerateOptions) the end of an answer, and a [`Cancel`](llm::Cancel) in them stops it from another thread. Models and
//! sessions may go to any thread; commands to one device are made one after another. A [`Conversation`](llm::Conversation) keeps what is said in a
//! session. Every [`Error`](error::Error) names its place; [`Error::kind`](error::Error::kind) tells programs of what kind it is.
//!
//! Below that, a [`Generator`](llm::Generator) takes tokens from anything that is a [`LanguageModel`](llm::LanguageModel): two methods and
//! three sizes. [`capi`] is the same for C, with the header `include/tlite.h`.
//!
//! # Modules, in the order of the work
//!
//! * [`gguf`], [`checkpoint`]: conversion of GGUF files, and of Hugging Face checkpoints, to folders of standard files;
//! * [`models`]: the models folder, and downloads from the Hugging Face Hub;
//! * [`shape`]: symbolic integers, shapes of them, and what is known of a value before it exists;
//! * [`graph`]: operators, import of ONNX files, passes, the host interpreter;
//! * [`quant`]: the E0M weight formats;
//! * [`plan`]: one static plan of a graph for a device;
//! * [`backend`]: OpenCL and wgpu behind one trait, and the kernels as data;
//! * [`cache`]: what makes the next start faster, on disk;
//! * [`executor`]: plans on a device;
//! * [`selftest`]: whether kernels are right on a device;
//! * [`runner`]: any model, tensors in, tensors out; [`files`]: tensors and pictures from files;
//! * [`placement`]: which backend, which device;
//! * [`llm`]: models and sessions; tokens in, tokens out;
//! * [`decoders`]: graphs of known models at their sizes, without weights or with random ones;
//! * [`inspect`]: what running a model takes, from its file alone;
//! * [`probe`], [`roofline`]: what a device can do, measured, and how long work takes at least on it;
//! * [`capi`]: the interface of C;
//! * [`cli`]: the command `tlite`;
//! * [`mod@tensor`], [`mod@error`]: host values, and errors that name their place.
//!
//! # Features
//!
//! `opencl` and `wgpu`, both on by default, compile the backends in. Without either, models run in the interpreter.
//! OpenCL's library is loaded at run time: a build with `opencl` runs on machines that have none.
//! `hub`, on by default too, downloads models; without it the library has no HTTP.
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
mod units;

/// The Rust example of the README, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
