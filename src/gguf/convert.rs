//! From a GGUF file to a folder of standard files.

use super::params::{ROPE_FREQS, params};
use super::read::Gguf;
use super::tensors::GgufTensors;
use super::tokenizer::{self, Vocabulary};
use crate::checkpoint::{Params, Progress, Summary, TEMPORARY, write_json, write_model};
use crate::error::Result;
use crate::new_folder::NewFolder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Converts the GGUF file `input` to the folder `output`, which holds `model.onnx`, `model.onnx.data` (weights
/// as `f32`, or with `keep_bits` those of few bits as E0M), `tokenizer.json`, `tokenizer_config.json`, `config.json` and `generation_config.json`.
///
/// The rotary frequencies are constants of the graph; factors that the file has for them one by one are not
/// repeated in `config.json`.
///
/// `output` must not exist or be an empty folder, and the folder that is to hold it must exist. The files are
/// made in a temporary folder beside it, which takes its place at the end; after an error nothing is left.
///
/// Errors: an architecture, tensor type, tokenizer or other trait of the model that is not supported; a damaged
/// or contradictory file; an output that is in the way ([`crate::error::Error::is_usage`]); a failure to write.
pub fn convert(
    input: &Path,
    output: &Path,
    keep_bits: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let new = NewFolder::create(output, TEMPORARY)?;
    let summary = convert_into(input, new.path(), keep_bits, progress)?;
    new.commit()?;
    Ok(summary)
}

/// As [`convert`], but writes into the existing folder `folder`, and leaves there what it wrote before an error.
pub fn convert_into(
    input: &Path,
    folder: &Path,
    keep_bits: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let gguf = Gguf::open(input)?;
    let params = params(&gguf)?;
    let vocabulary = Vocabulary::read(&gguf)?;
    if vocabulary.tokens.len() > params.vocab {
        return Err(gguf.bad(format!(
            "{} tokens, but the tensor \"token_embd.weight\" has {} rows",
            vocabulary.tokens.len(),
            params.vocab
        )));
    }
    write_all(&gguf, &params, &vocabulary, folder, keep_bits, progress)
}

fn write_all(
    gguf: &Gguf,
    params: &Params,
    vocabulary: &Vocabulary,
    folder: &Path,
    keep_bits: bool,
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

    let rope = gguf.tensor(ROPE_FREQS).map_or(0, |t| t.elements as u64);
    let parameters = gguf.tensors().iter().map(|t| t.elements as u64).sum::<u64>() - rope;
    let total = parameters * size_of::<f32>() as u64;
    let mut done = 0;
    let mut report = |tensor: &str, bytes: u64| {
        done += bytes;
        progress(Progress { tensor, done, total });
    };
    let name = gguf.opt_str("general.name")?;
    let metadata = [("name", name), ("license", gguf.opt_str("general.license")?)];
    let tensors = GgufTensors::new(gguf, params);
    let (kept, written) = write_model(&tensors, params, keep_bits, &metadata, folder, &mut report)?;

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
        kept: kept.weights,
        left: kept.left,
    })
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
