//! A summary of a GGUF file, from its header.

use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite_convert::gguf::{Gguf, Value, supported};

/// Tensors of one type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct TypeReport {
    /// Name of the type, such as `Q4_K`.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights in them.
    pub parameters: u64,
    /// Bytes; `None` for a type with an unknown layout.
    pub bytes: Option<u64>,
}

/// A GGUF file. `None` for what the header does not tell.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct GgufReport {
    /// The file.
    pub path: PathBuf,
    /// Name of the model in the header.
    pub name: Option<String>,
    /// Version of the format.
    pub version: u32,
    /// Architecture, such as `llama`.
    pub architecture: Option<String>,
    /// Why the file cannot be converted or run; `None` if it can.
    pub unsupported: Option<String>,
    /// Number of weights.
    pub parameters: u64,
    /// Mean bits per weight, over all tensors.
    pub bits_per_weight: Option<f64>,
    /// Size of the file.
    pub bytes: u64,
    /// Transformer layers.
    pub layers: Option<usize>,
    /// Width of the residual stream.
    pub hidden_size: Option<usize>,
    /// Query heads of a layer.
    pub heads: Option<usize>,
    /// Key and value heads of a layer.
    pub kv_heads: Option<usize>,
    /// Size of the vocabulary.
    pub vocabulary: Option<usize>,
    /// Longest context that the model was made for, in tokens.
    pub max_context: Option<usize>,
    /// Whether there is a chat template.
    pub chat_template: bool,
    /// Kind of tokenizer, as the header names it.
    pub tokenizer: Option<String>,
    /// Tensors by type, most bytes first.
    pub types: Vec<TypeReport>,
}

/// Reads the header of the GGUF file `path`. An error for a file that is damaged or cut off.
pub fn inspect_gguf(path: &Path) -> Result<GgufReport> {
    let file = Gguf::open(path)?;
    let text = |key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
    let architecture = text("general.architecture");
    let number = |name: &str| {
        let key = format!("{}.{name}", architecture.as_deref()?);
        usize::try_from(file.get(&key)?.as_u64()?).ok()
    };
    let mut types: BTreeMap<String, TypeReport> = BTreeMap::new();
    for t in file.tensors() {
        let name = t.ggml_type.to_string();
        let entry = types.entry(name.clone()).or_insert(TypeReport {
            name,
            tensors: 0,
            parameters: 0,
            bytes: Some(0),
        });
        entry.tensors += 1;
        entry.parameters = entry.parameters.saturating_add(t.elements as u64);
        let bytes = t.bytes().map(|n| n as u64);
        entry.bytes = entry.bytes.zip(bytes).map(|(sum, n)| sum.saturating_add(n));
    }
    let mut types: Vec<TypeReport> = types.into_values().collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let parameters: u64 = types.iter().map(|t| t.parameters).sum();
    let stored: Option<u64> = types.iter().map(|t| t.bytes).sum();
    #[expect(clippy::cast_precision_loss, reason = "a mean for people")]
    let bits = |bytes: u64| 8.0 * bytes as f64 / parameters as f64;
    let tokens = file.get("tokenizer.ggml.tokens").and_then(Value::as_strings);
    let heads = number("attention.head_count");
    Ok(GgufReport {
        path: path.to_owned(),
        name: text("general.name"),
        version: file.version(),
        unsupported: supported(&file).err().map(|e| match e {
            Error::File { what, .. } => what,
            e => e.chain(),
        }),
        parameters,
        bits_per_weight: stored.filter(|_| parameters > 0).map(bits),
        bytes: file
            .paths()
            .iter()
            .map(|path| std::fs::metadata(path).map_or(0, |m| m.len()))
            .sum(),
        layers: number("block_count"),
        hidden_size: number("embedding_length"),
        heads,
        kv_heads: number("attention.head_count_kv").or(heads),
        vocabulary: tokens.map(<[String]>::len),
        max_context: number("context_length"),
        chat_template: text("tokenizer.chat_template").is_some(),
        tokenizer: text("tokenizer.ggml.model").map(|model| match model.as_str() {
            "gpt2" => "BPE, byte-level".to_owned(),
            "llama" => "SentencePiece".to_owned(),
            "bert" => "WordPiece".to_owned(),
            _ => model,
        }),
        architecture,
        types,
    })
}
