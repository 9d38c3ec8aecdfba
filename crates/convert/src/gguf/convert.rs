//! Converts a GGUF file to a model folder.

use super::params::params;
use super::read::Gguf;
use super::tensors::GgufTensors;
use super::tokenizer::Vocabulary;
use crate::checkpoint::rope::decimal;
use crate::checkpoint::{Params, Progress, Summary, write_json, write_model};
use crate::new_folder::{CONVERT, NewFolder};
use serde_json::{Value, json};
use std::path::Path;
use transformer_lite::unstable::error::Result;

/// Converts the GGUF file `input` to the folder `output`, which holds `model.onnx`,
/// `model.onnx.data` (weights in `f32`; with `keep_bits` quantized weights keep their bits as E0M),
/// `tokenizer.json`, `tokenizer_config.json`, `config.json` and `generation_config.json`.
///
/// The rotary frequencies are constants of the graph; factors that the file has for them one by one
/// are not repeated in `config.json`.
///
/// `output` must not exist or must be an empty folder, and its parent folder must exist. The files
/// are written to a temporary folder beside it, which is renamed at the end. After an error nothing
/// is left.
///
/// Errors: an unsupported architecture, tensor type, tokenizer or other trait of the model; a
/// damaged or contradictory file; an existing output
/// ([`transformer_lite::unstable::error::Error::is_usage`]); a failure to write.
pub fn convert(
    input: &Path,
    output: &Path,
    keep_bits: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let new = NewFolder::create(output, CONVERT)?;
    let summary = convert_into(input, new.path(), keep_bits, progress)?;
    new.commit()?;
    Ok(summary)
}

/// Like [`convert`], but writes to the existing folder `folder`. After an error, files are left
/// there.
pub fn convert_into(
    input: &Path,
    folder: &Path,
    keep_bits: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    let gguf = Gguf::open(input)?;
    let (params, vocabulary) = read_model(&gguf)?;
    write_all(&gguf, &params, &vocabulary, folder, keep_bits, progress)
}

fn read_model(gguf: &Gguf) -> Result<(Params, Vocabulary)> {
    let params = params(gguf)?;
    let vocabulary = Vocabulary::read(gguf)?;
    if vocabulary.tokens.len() > params.vocab {
        return Err(gguf.bad(format!(
            "{} tokens, but the tensor \"token_embd.weight\" has {} rows",
            vocabulary.tokens.len(),
            params.vocab
        )));
    }
    Ok((params, vocabulary))
}

/// Checks that the model in `gguf` can be converted, without reading tensor data. An error names an
/// unsupported architecture, tokenizer, tensor type or other trait.
pub fn supported(gguf: &Gguf) -> Result<()> {
    read_model(gguf).map(drop)
}

fn write_all(
    gguf: &Gguf,
    params: &Params,
    vocabulary: &Vocabulary,
    folder: &Path,
    keep_bits: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Summary> {
    vocabulary.write(params.context, folder)?;
    write_json(folder, "config.json", &config_json(params, vocabulary), true)?;
    write_json(
        folder,
        "generation_config.json",
        &generation_json(vocabulary),
        true,
    )?;

    let metadata = [
        ("name", gguf.opt_str("general.name")?),
        ("license", gguf.opt_str("general.license")?),
    ];
    let tensors = GgufTensors::new(gguf, params);
    write_model(&tensors, params, keep_bits, &metadata, folder, progress)
}

fn ids(list: &[u32]) -> Value {
    match list {
        [] => Value::Null,
        [one] => json!(one),
        more => json!(more),
    }
}

fn config_json(p: &Params, v: &Vocabulary) -> Value {
    let activation = if p.family.gelu {
        "gelu_pytorch_tanh"
    } else {
        "silu"
    };
    let mut config = json!({
        "architectures": [p.family.class],
        "model_type": p.family.model_type,
        "hidden_size": p.hidden,
        "intermediate_size": p.intermediate,
        "num_hidden_layers": p.layers,
        "num_attention_heads": p.heads,
        "num_key_value_heads": p.kv_heads,
        "head_dim": p.head_dim,
        "hidden_act": activation,
        "rms_norm_eps": decimal(p.eps),
        "rope_theta": decimal(p.rope.theta),
        "rope_scaling": p.rope.scaling_json(),
        "vocab_size": p.vocab,
        "max_position_embeddings": p.context,
        "tie_word_embeddings": p.tied,
        "bos_token_id": v.bos,
        "eos_token_id": ids(&v.eos),
        "pad_token_id": v.pad,
        "torch_dtype": "float32",
        "use_cache": true,
    });
    let mut set = |key: &str, value: Value| config[key] = value;
    for (key, on) in [("attention_bias", p.qkv_bias), ("mlp_bias", p.mlp_bias)] {
        if p.family.bias_keys.contains(&key) {
            set(key, on.into());
        }
    }
    if p.family.gelu {
        set("hidden_activation", activation.into());
    }
    if p.family.normalizes_results {
        let cap = |cap: Option<f32>| cap.map_or(Value::Null, decimal);
        set("query_pre_attn_scalar", decimal(1.0 / (p.scale * p.scale)));
        set("attn_logit_softcapping", cap(p.score_cap));
        set("final_logit_softcapping", cap(p.logit_cap));
    }
    if let Some(window) = &p.window {
        set("sliding_window", window.length.into());
        if let Some(rope) = &window.rope {
            set("rope_local_base_freq", decimal(rope.theta));
        }
    } else if p.family.rotates_part {
        set("sliding_window", Value::Null);
    }
    if p.family.rotates_part {
        set(
            "partial_rotary_factor",
            json!(p.rope.width as f64 / p.head_dim as f64),
        );
        let original = p.rope.frequencies().1.map_or(p.context, |(original, _)| original);
        set("original_max_position_embeddings", original.into());
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
