//! ONNX files.

pub mod proto;
pub mod write;
