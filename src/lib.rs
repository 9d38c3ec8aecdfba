//! Transformer-Lite: ONNX models on phone and desktop GPUs, through OpenCL and through WGSL.
//!
//! ```text
//! model.onnx --import--> Graph --passes--> Graph --compile--> Plan --Session--> a device
//!                          \--Interpreter (the reference, and `--backend host`)
//! ```
//!
//! * [`shape`]: symbolic integers and shapes;
//! * [`graph`]: operators, import, passes, the host interpreter;
//! * [`quant`]: the E0M weight formats;
//! * [`plan`]: one static plan of a graph for a device;
//! * [`backend`]: OpenCL and wgpu behind one trait;
//! * [`session`]: plans on a device;
//! * [`llm`]: tokens in, tokens out;
//! * [`gguf`]: conversion of GGUF files;
//! * [`cli`]: the command `tlite`.
pub mod backend;
pub mod cli;
pub mod error;
pub mod gguf;
pub mod graph;
pub mod llm;
pub mod new_folder;
pub mod plan;
pub mod quant;
pub mod session;
pub mod shape;
pub mod tensor;
