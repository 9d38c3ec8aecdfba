//! From a GGUF file to a folder of standard files.

use super::llama::{Builder, Params};
use super::read::Gguf;
use super::tokenizer::{self, Vocabulary};
use crate::error::{Error, Result, Stage};
use crate::graph::onnx::write::ModelWriter;
use crate::new_folder::NewFolder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// How far a conversion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The weight being written, by its name in the graph.
    pub tensor: &'a str,
    /// Bytes of weights written.
    pub done: u64,
    /// Bytes of weights in all.
    pub total: u64,
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Architecture, as named in the GGUF file.
    pub architecture: String,
    /// The model's own name, if the file tells one.
    pub name: Option<String>,
    /// Number of layers.
    pub layers: usize,
    /// Number of weights.
    pub parameters: u64,
    /// How many tensors of each type the file had, by the type's name.
    pub source_types: BTreeMap<String, usize>,
    /// Entries of the vocabulary, as the model counts them.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// Bytes of `model.onnx.data`.
    pub data_bytes: u64,
}

/// Converts the GGUF file `input` to the folder `output`, which holds `model.onnx`, `model.onnx.data` (weights
/// as `f32`), `tokenizer.json`, `tokenizer_config.json`, `config.json` and `generation_config.json`.
///
/// The rotary frequencies are constants of the graph; factors that the file has for them one by one are not
/// repeated in `config.json`.
///
/// `output` must not exist or be an empty folder, and the folder that is to hold it must exist. The files are
/// made in a temporary folder beside it, which takes its place at the end; after an error nothing is left.
///
/// Errors: an architecture, tensor type, tokenizer or other trait of the model that is not supported; a damaged
/// or contradictory file; an output that is in the way ([`Error::is_usage`]); a failure to write.
pub fn convert(input: &Path, output: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Summary> {
    let new = NewFolder::create(output, TEMPORARY)?;
    let summary = convert_into(input, new.path(), progress)?;
    new.commit()?;
    Ok(summary)
}

/// How the name of the temporary folder starts.
pub(crate) const TEMPORARY: &str = ".convert-";

/// As [`convert`], but writes into the existing folder `folder`, and leaves there what it wrote before an error.
pub fn convert_into(input: &Path, folder: &Path, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Summary> {
    let gguf = Gguf::open(input)?;
    let params = Params::read(&gguf)?;
    let vocabulary = Vocabulary::read(&gguf)?;
    if vocabulary.tokens.len() > params.vocab {
        return Err(gguf.bad(format!(
            "{} tokens, but the tensor \"token_embd.weight\" has {} rows",
            vocabulary.tokens.len(),
            params.vocab
        )));
    }
    write_all(&gguf, &params, &vocabulary, folder, progress)
}

fn write_all(
    gguf: &Gguf,
    params: &Params,
    vocabulary: &Vocabulary,
    folder: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    write_json(
        folder,
        "tokenizer.json",
        &tokenizer::tokenizer_json(vocabulary),
        false,
    )?;
    write_json(
        folder,
        "tokenizer_config.json",
        &tokenizer::config_json(vocabulary, params.context),
        true,
    )?;
    write_json(folder, "config.json", &config_json(params, vocabulary), true)?;
    write_json(
        folder,
        "generation_config.json",
        &generation_json(vocabulary),
        true,
    )?;

    let rope = gguf.tensor("rope_freqs.weight").map_or(0, |t| t.elements as u64);
    let parameters = gguf.tensors().iter().map(|t| t.elements as u64).sum::<u64>() - rope;
    let total = parameters * size_of::<f32>() as u64;
    let mut done = 0;
    let mut report = |tensor: &str, bytes: u64| {
        done += bytes;
        progress(Progress { tensor, done, total });
    };
    let mut writer = ModelWriter::create(Stage::Convert, folder, "model.onnx", "main_graph")?;
    let name = gguf.opt_str("general.name")?;
    for (key, value) in [("name", name), ("license", gguf.opt_str("general.license")?)] {
        if let Some(value) = value {
            writer.metadata(key, value);
        }
    }
    let written = Builder::new(gguf, params, writer, &mut report)
        .build()?
        .finish()?;

    let mut source_types = BTreeMap::new();
    for tensor in gguf.tensors() {
        *source_types.entry(tensor.ggml_type.to_string()).or_insert(0) += 1;
    }
    Ok(Summary {
        architecture: params.architecture.clone(),
        name: name.map(str::to_owned),
        layers: params.layers,
        parameters,
        source_types,
        vocab: params.vocab,
        context: params.context,
        data_bytes: written.data_bytes,
    })
}

fn write_json(folder: &Path, name: &str, value: &Value, pretty: bool) -> Result<()> {
    let path = folder.join(name);
    let text = if pretty {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    }
    .map_err(|e| Error::parse(Stage::Convert, &path, "cannot be written as JSON", e))?;
    std::fs::write(&path, text).map_err(|e| Error::io("cannot write", &path, e))
}

/// An `f32` as the shortest decimal that reads back as the same `f32`.
fn decimal(v: f32) -> Value {
    v.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn ids(list: &[u32]) -> Value {
    match list {
        [] => Value::Null,
        [one] => json!(one),
        more => json!(more),
    }
}

fn config_json(p: &Params, v: &Vocabulary) -> Value {
    let class = if p.architecture == "llama" {
        "LlamaForCausalLM"
    } else {
        "Qwen2ForCausalLM"
    };
    let scaling = if p.rope_factor == 1.0 {
        Value::Null
    } else {
        json!({"rope_type": "linear", "factor": decimal(p.rope_factor)})
    };
    let mut config = json!({
        "architectures": [class],
        "model_type": p.architecture,
        "hidden_size": p.hidden,
        "intermediate_size": p.intermediate,
        "num_hidden_layers": p.layers,
        "num_attention_heads": p.heads,
        "num_key_value_heads": p.kv_heads,
        "head_dim": p.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": decimal(p.eps),
        "rope_theta": decimal(p.rope_theta),
        "rope_scaling": scaling,
        "vocab_size": p.vocab,
        "max_position_embeddings": p.context,
        "tie_word_embeddings": p.tied,
        "bos_token_id": v.bos,
        "eos_token_id": ids(&v.eos),
        "pad_token_id": v.pad,
        "torch_dtype": "float32",
        "use_cache": true,
    });
    if let (Some(map), "llama") = (config.as_object_mut(), p.architecture.as_str()) {
        map.insert("attention_bias".to_owned(), p.qkv_bias.into());
        map.insert("mlp_bias".to_owned(), p.mlp_bias.into());
    }
    config
}

fn generation_json(v: &Vocabulary) -> Value {
    let entries = [
        ("bos_token_id", json!(v.bos)),
        ("eos_token_id", ids(&v.eos)),
        ("pad_token_id", json!(v.pad)),
    ];
    entries
        .into_iter()
        .filter(|(_, v)| !v.is_null())
        .map(|(k, v)| (k.to_owned(), v))
        .collect()
}
