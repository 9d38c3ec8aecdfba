//! Hugging Face checkpoints: folders with `config.json` and `safetensors` files, in floats or
//! quantized with GPTQ or AWQ.

use super::config::{Config, Scheme};
use super::gptq;
pub(crate) use super::safetensors::INDEX;
use super::safetensors::{Shards, Tensor, files as safetensors_files};
use super::{Progress, Stored, Summary, Tensors, check_sizes, tokenizer, write_json, write_model};
use crate::new_folder::{CONVERT, NewFolder};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};

/// Files copied to the model folder if they exist.
pub(crate) const COPIED: [&str; 10] = [
    "added_tokens.json",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
];

/// Prefixes of tensor names: of a text model, and of the text model inside an image-and-text model,
/// in old and new files.
const PREFIXES: [&str; 3] = ["model.", "language_model.model.", "model.language_model."];

/// Converts the checkpoint folder `input` to the folder `output` with `model.onnx`,
/// `model.onnx.data`, `config.json` and the tokenizer's files. Without `tokenizer.json`, that file
/// is made of `tokenizer.model`, or of `vocab.json` and `merges.txt`. Matrices quantized with GPTQ
/// or AWQ keep their bits as E0M; others become `f32`.
///
/// Quantized values are kept. Scales and zero points are exact if they are f16 and integers, which
/// is what common tools write. Act-order is kept by sorting a matrix's inputs by group: for
/// `down_proj` at no cost, through the column order of `gate_proj` and `up_proj`; for others with a
/// `Gather`, which matrices that read the same value in the same order share.
///
/// `output` must not exist or must be an empty folder, and its parent folder must exist. Files are
/// written to a temporary folder next to it, which replaces it at the end; after an error nothing
/// is left.
///
/// Errors: an unsupported model type, quantization, tokenizer or feature; tensors that are missing,
/// unexpected, or of another shape or type than the configuration says; a damaged file; an existing
/// output ([`Error::is_usage`]); a failed write.
pub fn convert(input: &Path, output: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Summary> {
    let new = NewFolder::create(output, CONVERT)?;
    let summary = convert_into(input, new.path(), progress)?;
    new.commit()?;
    Ok(summary)
}

/// Like [`convert`], but writes into the existing folder `folder`. After an error, files already
/// written stay there.
pub fn convert_into(input: &Path, folder: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Summary> {
    let (scheme, mut config) = configuration(input)?;
    // Before the weights, which take long.
    tokenizer::check(input)?;
    let shards = Shards::open(input)?;
    let there = |prefix: &&&str| shards.get(&format!("{prefix}embed_tokens.weight")).is_some();
    let mut tensors = FolderTensors {
        folder: input.to_owned(),
        prefix: PREFIXES.iter().find(there).unwrap_or(&PREFIXES[0]),
        shards,
        scheme,
        tied: false,
        used: RefCell::default(),
    };
    let has = |name: &str| tensors.shards.get(&tensors.name(name)).is_some();
    let params = config
        .with_defaults()?
        .params(tensors.shards.names().len(), has)?;
    tensors.tied = params.tied;
    check_sizes(&tensors, &params)?;
    for name in COPIED {
        let (from, to) = (input.join(name), folder.join(name));
        if from.is_file() {
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(|e| Error::io("cannot create", parent, e))?;
            }
            std::fs::copy(&from, &to).map_err(|e| Error::io("cannot copy to", &to, e))?;
        }
    }
    tokenizer::write(input, folder, params.context)?;
    // The new model is not quantized in this way.
    config.map.shift_remove("quantization_config");
    let kept_config = serde_json::Value::Object(config.map);
    write_json(folder, "config.json", &kept_config, true)?;

    let keep = scheme.is_some();
    let mut summary = write_model(&tensors, &params, keep, &[], folder, progress)?;
    // Float tensors of a quantized checkpoint are floats on purpose.
    summary
        .left
        .retain(|l| tensors.shards.get(&tensors.name(&l.name)).is_none());
    Ok(summary)
}

/// Quantization and text model of the checkpoint in `folder`, whose weights need not be there.
fn configuration(folder: &Path) -> Result<(Option<Scheme>, Config)> {
    let config = Config::open(&folder.join("config.json"))?;
    let scheme = config.scheme()?;
    let config = config.text_model()?;
    config.family()?;
    Ok((scheme, config))
}

/// An error if `config.json` in `folder` describes a model that [`convert`] does not support. The
/// weights need not be there.
pub(crate) fn supported(folder: &Path) -> Result<()> {
    configuration(folder).map(drop)
}

/// True for a folder with `config.json` and a `safetensors` file.
pub fn is_checkpoint(folder: &Path) -> bool {
    let safetensors = |p: PathBuf| p.extension().is_some_and(|e| e == "safetensors");
    folder.join("config.json").is_file()
        && std::fs::read_dir(folder).is_ok_and(|list| list.flatten().any(|item| safetensors(item.path())))
}

/// The files of the checkpoint in `folder` that [`convert`] reads. Errors: no `safetensors` files,
/// or several without an index.
pub fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let small = ["config.json", INDEX].into_iter().chain(COPIED);
    let mut files: Vec<PathBuf> = small.map(|name| folder.join(name)).collect();
    if !folder.join(tokenizer::TOKENIZER).is_file() {
        files.push(folder.join(tokenizer::SENTENCE_PIECE));
    }
    files.retain(|path| path.is_file());
    files.extend(safetensors_files(folder)?);
    Ok(files)
}

/// The tensors of a folder.
struct FolderTensors {
    folder: PathBuf,
    /// Prefix of the text model's names.
    prefix: &'static str,
    shards: Shards,
    scheme: Option<Scheme>,
    tied: bool,
    used: RefCell<HashSet<String>>,
}

impl FolderTensors {
    /// An error about a tensor, by its name in the files.
    fn bad_tensor(&self, name: &str, what: &str) -> Error {
        Error::file(Stage::Convert, &self.folder, format!("tensor \"{name}\": {what}"))
    }

    /// A required tensor, by its name in the files.
    fn need(&self, name: &str) -> Result<Tensor<'_>> {
        self.used.borrow_mut().insert(name.to_owned());
        let found = self.shards.get(name);
        found.ok_or_else(|| self.bad_tensor(name, "is missing"))
    }
}

impl Tensors for FolderTensors {
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        let name = &self.name(name);
        if let (Some(base), &[outputs, inputs]) = (name.strip_suffix(".weight"), shape)
            && self.shards.get(&format!("{base}.qweight")).is_some()
        {
            let part = |what: &str| self.need(&format!("{base}.{what}"));
            let qweight = part("qweight")?;
            return match self.scheme {
                Some(Scheme::Gptq(gptq)) => {
                    let g_idx = format!("{base}.g_idx");
                    let parts = gptq::Parts {
                        qweight,
                        qzeros: part("qzeros")?,
                        scales: part("scales")?,
                        g_idx: self.shards.get(&g_idx).map(|_| self.need(&g_idx)).transpose()?,
                    };
                    gptq.stored(parts, inputs, outputs)
                }
                Some(Scheme::Awq(awq)) => {
                    awq.stored([qweight, part("qzeros")?, part("scales")?], inputs, outputs)
                }
                None => Err(qweight.bad("is quantized, but config.json has no quantization_config")),
            };
        }
        let tensor = self.need(name)?;
        tensor.expect_shape(shape)?;
        tensor.floats(0, &mut [])?;
        let width = if let [_, width] = shape { *width } else { 1 };
        Ok(Stored {
            rows: Box::new(move |first, out| tensor.floats(first * width, out)),
            grids: None,
            order: None,
            kind: tensor.dtype.to_owned(),
            bytes: tensor.bytes.len() as u64,
        })
    }

    fn name(&self, name: &str) -> String {
        match name.strip_prefix(PREFIXES[0]) {
            Some(rest) => format!("{}{rest}", self.prefix),
            None => name.to_owned(),
        }
    }

    fn bad_file(&self, what: &str) -> Error {
        Error::file(Stage::Convert, &self.folder, what)
    }

    fn types(&self) -> BTreeMap<String, usize> {
        let mut types = BTreeMap::new();
        for t in self.shards.names().iter().filter_map(|n| self.shards.get(n)) {
            *types.entry(t.dtype.to_owned()).or_insert(0) += 1;
        }
        types
    }

    fn all_used(&self) -> Result<()> {
        let used = self.used.borrow();
        let needless = |name: &str| {
            // Older tools store a table that follows from the configuration, and the embedding
            // twice.
            name.ends_with(".rotary_emb.inv_freq")
                || self.tied && name.ends_with("lm_head.weight")
                // Image encoder.
                || self.prefix != PREFIXES[0] && !name.starts_with(self.prefix)
        };
        let extra = self
            .shards
            .names()
            .iter()
            .find(|n| !used.contains(*n) && !needless(n));
        extra.map_or(Ok(()), |name| {
            Err(self.bad_tensor(name, "is not part of this architecture"))
        })
    }
}
