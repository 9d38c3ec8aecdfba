//! Converts decoder checkpoints of any supported [family](crate::families) to ONNX models.
//!
//! A builder writes graph and weights from [`Params`] and [`Tensors`], which readers of file
//! formats provide: [`crate::gguf`], and [`folder`] for Hugging Face checkpoints, plain or
//! quantized with GPTQ or AWQ.

mod awq;
mod config;
mod decoder;
pub mod folder;
mod gptq;
mod params;
pub mod rope;
mod safetensors;
mod store;
#[cfg(test)]
#[path = "../../../../tests/support/hugging_face.rs"]
mod testing;
#[cfg(test)]
mod tests;
pub(crate) mod tokenizer;
pub(crate) mod weights;

pub(crate) use params::head_size;
pub use params::{Params, Window};
pub(crate) use store::check_sizes;
pub use store::{Stored, Tensors};

use crate::builder::Builder;
use crate::quantize::{Left, Quantized};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use store::too_large;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::write::ModelWriter;
use weights::Checkpoint;

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The weight being written, by its name in the graph.
    pub tensor: &'a str,
    /// Bytes of weights written; each weight counts as an `f32`.
    pub done: u64,
    /// Total bytes of weights, counted in the same way.
    pub total: u64,
}

/// Result of a conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Architecture, as the checkpoint names it.
    pub architecture: String,
    /// The model's own name, if the checkpoint has one.
    pub name: Option<String>,
    pub layers: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Number of tensors per type in the checkpoint, by type name.
    pub source_types: BTreeMap<String, usize>,
    /// Vocabulary size of the model.
    pub vocab: usize,
    /// Longest sequence that the model supports.
    pub context: usize,
    /// Bytes of `model.onnx.data`.
    pub data_bytes: u64,
    /// Weights that kept their bits, with the error that the conversion added relative to the
    /// weights of the checkpoint.
    pub kept: Vec<Quantized>,
    /// Weights stored as floats although bits were to be kept.
    pub left: Vec<Left>,
}

/// Writes `model.onnx` and its data into `folder`. `metadata` becomes the model's metadata; the
/// entry `name` is the model's own name.
pub(crate) fn write_model(
    tensors: &dyn Tensors,
    params: &Params,
    keep_bits: bool,
    metadata: &[(&str, Option<&str>)],
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let mut writer = ModelWriter::create(Stage::Convert, folder, "model.onnx", "main_graph")?;
    if keep_bits {
        writer = writer.with_checksums();
    }
    for (key, value) in metadata {
        if let Some(value) = value {
            writer.metadata(key, value);
        }
    }
    let parameters = params.elements().ok_or_else(|| too_large(tensors))? as u64;
    let total = parameters * size_of::<f32>() as u64;
    let mut done = 0;
    let mut report = |tensor: &str, bytes: u64| {
        done += bytes;
        progress(Progress { tensor, done, total });
    };
    let source = Checkpoint::new(tensors, params, keep_bits, &mut report);
    let (writer, kept) = Builder::new(writer, source).build()?;
    let written = writer.finish()?;
    let name = metadata.iter().find(|(key, _)| *key == "name");
    Ok(Summary {
        architecture: params.family.name.to_owned(),
        name: name.and_then(|(_, value)| value.map(str::to_owned)),
        layers: params.layers,
        parameters,
        source_types: tensors.types(),
        vocab: params.vocab,
        context: params.context,
        data_bytes: written.data_bytes,
        kept: kept.weights,
        left: kept.left,
    })
}

/// Lists of weights for [`Summary`].
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
