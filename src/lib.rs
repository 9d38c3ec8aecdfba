//! Transformer-Lite runs ONNX models, primarily language models, on GPUs through OpenCL and WGSL,
//! and on CPUs with native kernels. It is designed for phones, but has not yet run on one.
//!
//! ```text
//! model.onnx --import--> Graph --passes--> Graph --compile--> Plan --Executor--> a device
//!                          \--Interpreter (the reference, and `--backend reference`)
//! ```
//!
//! * Shapes are symbolic: `batch`, `sequence` and `past` stay symbols from import to the parameters
//!   of a kernel.
//! * A plan is made once per graph and device. Only kernel parameters and grid sizes change between
//!   runs.
//! * Weights may be 4-bit; the KV cache is appended to in place, never copied.
//! * GPU kernels exist in OpenCL C and in WGSL, except for a few variants for tensor cores. An
//!   interpreter on the host is the reference for all backends.
//!
//! # Generating text
//!
//! A model is a folder with `model.onnx`, `tokenizer.json` and the configuration files that
//! exporters write next to them.
//!
//! ```no_run
//! use transformer_lite::{GenerateOptions, LoadOptions, Message, Model};
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
//! A [`Model`] holds weights, kernels, tokenizer and chat template. Its
//! [`Session`]s share them; each has its own KV cache.
//! [`LoadOptions`] select the device and the context length, a
//! [`Sampler`] chooses tokens, and [`GenerateOptions`] set when
//! an answer ends; their [`Cancel`] stops it from another thread. Models and sessions
//! can be sent to any thread; commands to one device are serialized. A
//! [`Conversation`] keeps the messages of a session. A [`Batcher`] answers many [`Request`]s at the
//! same time, and runs beam search. Every
//! [`Error`] names its place, and [`Error::kind`](Error::kind) classifies it
//! for programs.
//!
//! At a lower level, a [`Generator`] draws tokens from any [`LanguageModel`]. A [`Runner`] runs any
//! model: tensors in, tensors out. The C library is the package
//! `transformer-lite-capi`.
//!
//! # Features
//!
//! `cpu`, `opencl` and `wgpu`, all on by default, compile the backends in. Without any, models run
//! in the interpreter. The OpenCL library is loaded at run time: a build with `opencl` also runs on
//! machines that have none. `vision`, on by default, reads pictures. `schema` derives JSON schemas
//! of the reports that `tlite --json` prints.
//!
//! # Stability
//!
//! The names at the root of the crate and in the modules [`options`] and [`results`] are its
//! interface. Everything else is private, or hidden in the module `unstable`, which the crates of
//! this workspace build on and which may change in any release.
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
// The parent of all modules is private, so that `unstable` decides which of them other crates see.
#[path = ""]
mod internal {
    pub mod backend;
    pub mod cache;
    pub mod cancel;
    pub mod devices;
    pub mod error;
    pub mod executor;
    pub mod files;
    pub mod fmt;
    pub mod graph;
    pub mod kernels;
    pub mod limits;
    pub mod llm;
    pub mod lower;
    pub mod mapped;
    pub mod note;
    pub mod num;
    pub mod parallel;
    pub mod placement;
    pub mod plan;
    pub mod probe;
    pub mod quant;
    pub mod quota;
    pub mod runner;
    pub mod shape;
    pub mod tensor;
    pub mod validate;
    #[cfg(feature = "vision")]
    pub mod vision;
}
#[cfg(test)]
mod testing;

use internal::{
    backend, cache, cancel, devices, error, executor, files, fmt, graph, kernels, limits, llm, lower, mapped,
    note, num, parallel, placement, plan, quant, quota, runner, shape, tensor, validate,
};

pub use backend::validation::DeviceQuarantine;
pub use backend::{Backend, BackendError, BackendKind, OpenOptions, Priority, QuarantineCause, Quarantined};
pub use cache::{DEFAULT_LIMIT as DEFAULT_CACHE_LIMIT, Store as KernelCache};
pub use cancel::Cancel;
pub use devices::open as open_device;
pub use error::{Error, ErrorKind, Result, Stage};
pub use limits::Limits;
pub use llm::{
    Activations, Answer, BatchOptions, Batcher, Beam, BeamOptions, CandidateRow, Candidates, ChatTemplate,
    Codec, Conversation, DecodeOptions, DefaultBound, Draft, Finish, GenerateOptions, Generator, Grammar,
    KvType, LanguageModel, LoadOptions, LogProbs, Message, Metrics, Model, ModelDraft, ModelFolder,
    NgramDraft, Piece, Progress, Prompt, Reply, Request, Sampler, SamplerConfig, SamplerNeeds, SchemaOptions,
    Session, Speculation, States, StopStrings, Ticket, Token, Tokenizer, TopToken, WhiteSpace,
};
pub use note::Note;
pub use placement::{BackendChoice, Placement};
pub use runner::{Runner, RunnerOptions};
pub use shape::{Dim, Fact, Shape};
pub use tensor::{DType, HostTensor};

/// The types of fields of options.
pub mod options {
    pub use crate::internal::backend::isa::Isa;
    pub use crate::internal::backend::{ImageUse, ReplayMode};
    pub use crate::internal::executor::WeightSource;
    pub use crate::internal::llm::sampler::{Dry, Penalties};
    pub use crate::internal::llm::template::Values;
    pub use crate::internal::quant::fixed::Arithmetic;
    pub use crate::internal::runner::Checks;
}

/// Types of results that are not at the root: parts of results and errors, figures, progress.
pub mod results {
    pub use crate::internal::backend::{DeviceKind, Stats};
    pub use crate::internal::cache::{Entry, Key, Kind};
    pub use crate::internal::error::Cause;
    pub use crate::internal::executor::Timing;
    pub use crate::internal::graph::pass::PassReport;
    pub use crate::internal::llm::batch::BatchState;
    pub use crate::internal::llm::load::{Loading, PlaceName, Used};
    pub use crate::internal::llm::prompt_cache::{Identity, Layout};
    pub use crate::internal::llm::template::Raised;
    pub use crate::internal::note::Unused;
    pub use crate::internal::runner::Named;
    pub use crate::internal::shape::{Bindings, DimError, Known, Symbol};
    pub use crate::internal::tensor::TensorError;
}

/// The internals, for the other crates of this workspace and for tests: without any promise.
#[doc(hidden)]
pub mod unstable {
    #[cfg(feature = "vision")]
    pub use crate::internal::vision;
    pub use crate::internal::{
        backend, cache, cancel, devices, error, executor, files, fmt, graph, kernels, limits, llm, lower,
        mapped, note, num, parallel, placement, plan, probe, quant, quota, runner, shape, tensor, validate,
    };
}

/// The Rust examples of the documents, compiled as documentation tests.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/library.md")]
    struct Library;
}
