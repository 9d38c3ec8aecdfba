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
//! use std::path::Path;
//! use transformer_lite::backend::{self, BackendKind};
//! use transformer_lite::graph::pass::Pipeline;
//! use transformer_lite::llm::engine::{Decoder, DeviceModel, Lengths, Logits};
//! use transformer_lite::llm::{ChatTemplate, Generator, Limits, Message, ModelFolder, Sampler, SamplerConfig, Tokenizer};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = ModelFolder::open(Path::new("smollm2-e0m4"))?;
//!     let tokenizer = Tokenizer::load(folder.dir())?;
//!     let decoder = Decoder::load(&folder.onnx(), &Pipeline::standard(), Logits::Last)?;
//!     let device = backend::open(BackendKind::OpenCl, None)?;
//!     let mut model = DeviceModel::new(decoder, device, &Lengths::of(2048))?;
//!
//!     let question = [Message::user("What is the capital of France?")];
//!     let prompt = tokenizer.encode(&ChatTemplate::load(&folder)?.render(&question, true)?, false)?;
//!     let mut sampler = Sampler::new(SamplerConfig::default())?;
//!     let limits = Limits { max_tokens: 64, eos: folder.eos_ids(&tokenizer), ..Limits::default() };
//!     let mut text = tokenizer.stream();
//!     for token in Generator::new(&mut model, &mut sampler, &prompt, limits)? {
//!         print!("{}", text.push(token?.id)?);
//!     }
//!     println!("{}", text.finish()?);
//!     Ok(())
//! }
//! ```
//!
//! # Modules, in the order of the work
//!
//! * [`gguf`], [`checkpoint`]: conversion of GGUF files, and of Hugging Face checkpoints, to folders of standard files;
//! * [`shape`]: symbolic integers, shapes of them, and what is known of a value before it exists;
//! * [`graph`]: operators, import of ONNX files, passes, the host interpreter;
//! * [`quant`]: the E0M weight formats;
//! * [`plan`]: one static plan of a graph for a device;
//! * [`backend`]: OpenCL and wgpu behind one trait, and the kernels as data;
//! * [`executor`]: plans on a device;
//! * [`runner`]: any model, tensors in, tensors out; [`files`]: tensors and pictures from files;
//! * [`llm`]: tokens in, tokens out;
//! * [`inspect`]: what running a model takes, from its file alone;
//! * [`cli`]: the command `tlite`;
//! * [`mod@tensor`], [`mod@error`]: host values, and errors that name their place.
//!
//! # Features
//!
//! `opencl` and `wgpu`, both on by default, compile the backends in. Without either, models run in the interpreter.
//! OpenCL's library is loaded at run time: a build with `opencl` runs on machines that have none.
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
pub mod checkpoint;
pub mod cli;
pub mod error;
pub mod executor;
pub mod files;
pub mod gguf;
pub mod graph;
pub mod inspect;
pub mod llm;
mod mapped;
pub mod new_folder;
mod parallel;
pub mod placement;
pub mod plan;
pub mod quant;
pub mod runner;

pub mod shape;
pub mod tensor;

/// The Rust example of the README, compiled with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
