//! Quantization of ONNX models.
