//! GGUF files: reading them, and converting the models in them to folders of standard files.
//!
//! [`convert`] turns a model of a supported architecture into a folder with `model.onnx`, its
//! weights and the tokenizer and configuration files that Hugging Face checkpoints have.

mod convert;
pub mod dequant;
mod params;
pub mod read;
pub(crate) mod split;
mod tensors;
#[cfg(test)]
#[path = "../../../../tests/support/gguf.rs"]
mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod tokenizer;

pub use convert::{convert, convert_into, supported};
pub use dequant::GgmlType;
pub use read::{Array, Gguf, TensorInfo, Value};
pub use split::files;
pub use tokenizer::write_tokenizer;

#[cfg(test)]
use transformer_lite::unstable::error::Result;
