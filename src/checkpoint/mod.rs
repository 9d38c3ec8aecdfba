//! Checkpoints of the architectures `llama` and `qwen2` as ONNX models.
//!
//! [`Builder`] writes graph and weights from [`Params`] and [`Tensors`], which the readers of file formats provide: [`crate::gguf`], and
//! [`folder`] for those of Hugging Face, plain or quantized by GPTQ or AWQ.

mod awq;
mod config;
pub mod folder;
mod gptq;
mod llama;
mod safetensors;
mod store;
#[cfg(test)]
mod tests;

pub use llama::Builder;
pub use store::{Stored, Tensors};

use crate::error::{Error, Result, Stage};
use crate::graph::onnx::quantize::{Left, Quantized};
use crate::graph::onnx::write::{ModelWriter, Written};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Architectures that [`Builder`] knows.
pub const ARCHITECTURES: [&str; 2] = ["llama", "qwen2"];

/// How the name of the temporary folder of a conversion starts.
pub(crate) const TEMPORARY: &str = ".convert-";

/// Sizes and numbers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// One of [`ARCHITECTURES`].
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the matrices of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// All rotary frequencies are divided by this.
    pub rope_factor: f32,
    /// Each rotary frequency is divided by its own of these, half as many as `head_dim`.
    pub rope_factors: Vec<f32>,
    /// Added to the mean square in normalisations.
    pub eps: f32,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// The embedding is the output matrix too.
    pub tied: bool,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The output projection of attention has a bias.
    pub output_bias: bool,
    /// The matrices of the MLP have biases.
    pub mlp_bias: bool,
}

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The weight being written, by its name in the graph.
    pub tensor: &'a str,
    /// Bytes of weights written, each weight counted as an `f32`.
    pub done: u64,
    /// Bytes of weights in all, counted likewise.
    pub total: u64,
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Architecture, as the checkpoint names it.
    pub architecture: String,
    /// The model's own name, if the checkpoint tells one.
    pub name: Option<String>,
    /// Number of layers.
    pub layers: usize,
    /// Number of weights.
    pub parameters: u64,
    /// How many tensors of each type the checkpoint had, by the type's name.
    pub source_types: BTreeMap<String, usize>,
    /// Entries of the vocabulary, as the model counts them.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// Bytes of `model.onnx.data`.
    pub data_bytes: u64,
    /// Weights that kept their few bits, with the error that this added: in place of the method's, against the weights that the checkpoint's
    /// codes stand for.
    pub kept: Vec<Quantized>,
    /// Weights that are floats though bits were to be kept.
    pub left: Vec<Left>,
}

/// Writes `model.onnx` and its data into `folder`; what was kept, and what was written.
pub(crate) fn write_model(
    tensors: &dyn Tensors,
    params: &Params,
    keep_bits: bool,
    metadata: &[(&str, Option<&str>)],
    folder: &Path,
    progress: &mut dyn FnMut(&str, u64),
) -> Result<(Kept, Written)> {
    let mut writer = ModelWriter::create(Stage::Convert, folder, "model.onnx", "main_graph")?;
    if keep_bits {
        writer = writer.with_checksums();
    }
    for (key, value) in metadata {
        if let Some(value) = value {
            writer.metadata(key, value);
        }
    }
    let (writer, kept) = Builder::new(tensors, params, writer, keep_bits, progress).build()?;
    Ok((kept, writer.finish()?))
}

/// Weights of few bits, as [`Summary`] lists them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// See [`Summary::kept`].
    pub weights: Vec<Quantized>,
    /// See [`Summary::left`].
    pub left: Vec<Left>,
}

pub(crate) fn write_json(folder: &Path, name: &str, value: &Value, pretty: bool) -> Result<()> {
    let path = folder.join(name);
    let text = if pretty {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    }
    .map_err(|e| Error::parse(Stage::Convert, &path, "cannot be written as JSON", e))?;
    std::fs::write(&path, text).map_err(|e| Error::io("cannot write", &path, e))
}
