//! What the metadata of a GGUF file say of a model of the architectures `llama` and `qwen2`.

use super::read::{Gguf, TensorInfo};
use crate::checkpoint::{ARCHITECTURES, Params};
use crate::error::{Error, Result};

/// Keys that change the computation in ways that this graph does not have.
const FOREIGN_KEYS: [&str; 10] = [
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "use_parallel_residual",
];

/// Reads and checks the metadata. An error names the key, what was expected and what was found.
pub fn params(g: &Gguf) -> Result<Params> {
    let architecture = g.required("general.architecture", g.opt_str("general.architecture")?)?;
    if !ARCHITECTURES.contains(&architecture) {
        return Err(g.bad(format!(
            "architecture \"{architecture}\" cannot be converted; supported are {}",
            ARCHITECTURES.join(", ")
        )));
    }
    let key = |name: &str| format!("{architecture}.{name}");
    let size = |name: &str| {
        let key = key(name);
        match g.opt_usize(&key)? {
            Some(0) => Err(g.bad(format!("metadata \"{key}\": expected a positive number, found 0"))),
            v => Ok(v),
        }
    };
    let need = |name: &str| g.required(&key(name), size(name)?);
    for name in FOREIGN_KEYS {
        let key = key(name);
        let neutral = match g.get(&key) {
            None => true,
            Some(v) => v.as_u64() == Some(0) || v.as_f32() == Some(0.0) || v.as_bool() == Some(false),
        };
        if !neutral {
            return Err(g.bad(format!(
                "metadata \"{key}\" asks for a computation that is not supported"
            )));
        }
    }

    let layers = need("block_count")?;
    let hidden = need("embedding_length")?;
    let intermediate = need("feed_forward_length")?;
    let context = need("context_length")?;
    let heads = need("attention.head_count")?;
    let kv_heads = size("attention.head_count_kv")?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(g.bad(format!(
            "{heads} query heads are not a multiple of {kv_heads} key heads"
        )));
    }
    let head_dim = match size("attention.key_length")? {
        Some(v) => v,
        None if hidden % heads == 0 => hidden / heads,
        None => return Err(g.bad(format!("width {hidden} is not a multiple of {heads} heads"))),
    };
    if head_dim % 2 != 0 {
        return Err(g.bad(format!("expected heads of an even width, found {head_dim}")));
    }
    for name in ["attention.value_length", "rope.dimension_count"] {
        if let Some(v) = size(name)?.filter(|v| *v != head_dim) {
            return Err(g.bad(format!(
                "metadata \"{}\": expected the head width {head_dim}, found {v}",
                key(name)
            )));
        }
    }
    if let Some(window) = size("attention.sliding_window")?.filter(|w| *w < context) {
        return Err(g.bad(format!(
            "attention over a window of {window} tokens is not supported"
        )));
    }

    let number = |name: &str| {
        let key = key(name);
        match g.opt_f32(&key)? {
            Some(v) if !(v.is_finite() && v > 0.0) => Err(g.bad(format!(
                "metadata \"{key}\": expected a positive number, found {v}"
            ))),
            v => Ok(v),
        }
    };
    let eps_key = "attention.layer_norm_rms_epsilon";
    let eps = g.required(&key(eps_key), number(eps_key)?)?;
    let rope_factor = match g.opt_str(&key("rope.scaling.type"))? {
        // A factor without a type is a linear one.
        None => number("rope.scaling.factor")?
            .or(number("rope.scale_linear")?)
            .unwrap_or(1.0),
        Some("none") => 1.0,
        Some("linear") => g.required(&key("rope.scaling.factor"), number("rope.scaling.factor")?)?,
        Some(other) => {
            return Err(g.bad(format!(
                "rotary scaling \"{other}\" is not supported; supported are none, linear"
            )));
        }
    };

    g.check_types()?;
    let embedding = g
        .tensor("token_embd.weight")
        .ok_or_else(|| missing(g, "token_embd.weight"))?;
    let vocab = embedding.dims.get(1).copied().unwrap_or(1);
    let stated = size("vocab_size")?.unwrap_or(vocab);
    expect_dims(g, embedding, &[hidden, stated])?;
    // The tensors bound the sizes that the metadata claim before anything is allocated by them.
    for (name, count) in [("attn_q", heads), ("attn_k", kv_heads)] {
        let name = format!("blk.0.{name}.weight");
        let info = g.tensor(&name).ok_or_else(|| missing(g, &name))?;
        expect_dims(g, info, &[hidden, count.saturating_mul(head_dim)])?;
    }
    let bias = |name: &str| g.tensor(&format!("blk.0.{name}.bias")).is_some();
    let params = Params {
        architecture: architecture.to_owned(),
        layers,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        rope_theta: number("rope.freq_base")?.unwrap_or(10_000.0),
        rope_factor,
        rope_factors: rope_factors(g, head_dim / 2)?,
        eps,
        vocab,
        context,
        tied: g.tensor("output.weight").is_none(),
        qkv_bias: bias("attn_q"),
        output_bias: bias("attn_output"),
        mlp_bias: bias("ffn_gate"),
    };
    // A count that the tensor table cannot hold is refused before anything is sized by it.
    if layers > g.tensors().len() {
        return Err(g.bad(format!("{layers} layers, but only {} tensors", g.tensors().len())));
    }
    Ok(params)
}

pub fn expect_dims(g: &Gguf, info: &TensorInfo, dims: &[usize]) -> Result<()> {
    if info.dims == dims {
        return Ok(());
    }
    let (name, found) = (&info.name, &info.dims);
    Err(g.bad(format!(
        "tensor \"{name}\": expected sizes {dims:?} by the metadata, found {found:?}"
    )))
}

pub fn missing(g: &Gguf, name: &str) -> Error {
    g.bad(format!("tensor \"{name}\" is missing"))
}

/// The tensor of factors, if the file has it.
pub const ROPE_FREQS: &str = "rope_freqs.weight";

fn rope_factors(g: &Gguf, half: usize) -> Result<Vec<f32>> {
    let mut factors = vec![1.0; half];
    if let Some(info) = g.tensor(ROPE_FREQS) {
        expect_dims(g, info, &[half])?;
        g.read_f32(info, 0, &mut factors)?;
        if let Some(v) = factors.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
            return Err(g.bad(format!(
                "tensor \"{ROPE_FREQS}\": expected positive numbers, found {v}"
            )));
        }
    }
    Ok(factors)
}
