//! Transformer-Lite: ONNX models on phone and desktop GPUs, through OpenCL and through WGSL.
pub mod backend;
pub mod cli;
pub mod error;
pub mod gguf;
pub mod graph;
pub mod llm;
pub mod shape;
pub mod tensor;
