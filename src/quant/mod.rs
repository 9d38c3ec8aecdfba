//! Weight quantization: the E0M formats.

pub mod e0m;
