//! Models as graphs of operators.

pub mod onnx;
