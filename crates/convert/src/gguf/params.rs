//! Model parameters from the metadata of a GGUF file.

use super::read::{Gguf, TensorInfo, Value};
use super::tensors::GgufTensors;
use crate::checkpoint::rope::{Rope, Scaling, yarn_magnitude};
use crate::checkpoint::{Params, Window, check_sizes, head_size};
use crate::families::{ALL, Family, Windows};
use crate::memory;
use transformer_lite::unstable::error::{Error, Result};

/// Factors, for which 1 asks for no computation.
const FACTORS: [&str; 3] = ["embedding_scale", "logit_scale", "residual_scale"];
/// Keys for computations that the graph does not support.
const FOREIGN_KEYS: [&str; 9] = [
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "embedding_scale",
    "expert_count",
    "logit_scale",
    "residual_scale",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
    "use_parallel_residual",
];

/// The metadata of a model, whose keys begin with its architecture.
struct Metadata<'a> {
    g: &'a Gguf,
    family: &'static Family,
}

impl Metadata<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name)
    }

    /// A positive integer.
    fn size(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        self.positive(&key, self.g.opt_usize(&key)?)
    }

    /// A positive integer that a file may give for each of `layers` layers. An error where layers
    /// differ.
    fn size_of_layers(&self, name: &str, layers: usize) -> Result<Option<usize>> {
        let (g, key) = (self.g, self.key(name));
        let list = match g.get(&key) {
            Some(Value::Array(array)) => array.integers(),
            _ => None,
        };
        let Some(list) = list else {
            return self.size(name);
        };
        if list.len() != layers {
            let found = list.len();
            return Err(g.bad(format!(
                "metadata \"{key}\": expected {layers} entries, one per layer, found {found}"
            )));
        }
        let first = list.first().copied().unwrap_or_default();
        if let Some(other) = list.iter().find(|v| **v != first) {
            return Err(g.unsupported(format!(
                "metadata \"{key}\": layers with different values are not supported; found {first} and {other}"
            )));
        }
        let size = usize::try_from(first).map_err(|_| {
            g.bad(format!(
                "metadata \"{key}\": expected a positive number, found {first}"
            ))
        });
        self.positive(&key, Some(size?))
    }

    fn positive(&self, key: &str, found: Option<usize>) -> Result<Option<usize>> {
        match found {
            Some(0) => Err(self
                .g
                .bad(format!("metadata \"{key}\": expected a positive number, found 0"))),
            v => Ok(v),
        }
    }

    /// The value that the family assumes for a missing key.
    fn default(&self, name: &str) -> Option<f32> {
        let mut list = self.family.gguf.iter();
        list.find(|(key, _)| *key == name).map(|(_, v)| *v)
    }

    /// A positive number.
    fn number(&self, name: &str) -> Result<Option<f32>> {
        let key = self.key(name);
        match self.g.opt_f32(&key)? {
            Some(v) if !(v.is_finite() && v > 0.0) => Err(self.g.bad(format!(
                "metadata \"{key}\": expected a positive number, found {v}"
            ))),
            v => Ok(v.or(self.default(name))),
        }
    }

    /// A number; 0 means off.
    fn number_or_off(&self, name: &str) -> Result<Option<f32>> {
        match self.g.opt_f32(&self.key(name))? {
            Some(0.0) => Ok(None),
            _ => self.number(name),
        }
    }

    fn need<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        self.g.required(&self.key(name), value)
    }

    fn need_size(&self, name: &str) -> Result<usize> {
        self.need(name, self.size(name)?)
    }

    /// An error for a key that asks for an unsupported computation.
    fn check_foreign(&self) -> Result<()> {
        for name in FOREIGN_KEYS {
            let key = self.key(name);
            let neutral = match self.g.get(&key) {
                None => true,
                Some(v) => {
                    let one = FACTORS.contains(&name) && (v.as_u64() == Some(1) || v.as_f32() == Some(1.0));
                    one || v.as_u64() == Some(0) || v.as_f32() == Some(0.0) || v.as_bool() == Some(false)
                }
            };
            if !neutral {
                return Err(self.g.unsupported(format!(
                    "metadata \"{key}\" requires a computation that is not supported"
                )));
            }
        }
        Ok(())
    }

    /// The numbers of query heads and of key heads, and their width.
    fn heads(&self, hidden: usize, layers: usize) -> Result<(usize, usize, usize)> {
        let g = self.g;
        let count = |name: &str| self.size_of_layers(name, layers);
        let heads = self.need("attention.head_count", count("attention.head_count")?)?;
        let kv_heads = count("attention.head_count_kv")?.unwrap_or(heads);
        let stated = self.size("attention.key_length")?;
        let head_dim = head_size(hidden, [heads, kv_heads], stated).map_err(|(key, what)| {
            let key = self.key(match key {
                "head_dim" => "attention.key_length",
                "num_key_value_heads" => "attention.head_count_kv",
                _ => "attention.head_count",
            });
            g.bad(format!("metadata \"{key}\": {what}"))
        })?;
        if let Some(v) = self.size("attention.value_length")?.filter(|v| *v != head_dim) {
            return Err(g.bad(format!(
                "metadata \"{}\": expected the head width {head_dim}, found {v}",
                self.key("attention.value_length")
            )));
        }
        Ok((heads, kv_heads, head_dim))
    }

    /// The number of rows of the embedding, whose width is `hidden`.
    fn vocabulary(&self, hidden: usize) -> Result<usize> {
        let g = self.g;
        g.check_types()?;
        let name = "token_embd.weight";
        let embedding = g.tensor(name).ok_or_else(|| missing(g, name))?;
        let vocab = embedding.dims.get(1).copied().unwrap_or(1);
        let stated = self.size("vocab_size")?.unwrap_or(vocab);
        expect_dims(g, embedding, &[hidden, stated])?;
        Ok(vocab)
    }

    /// The rotary embedding of layers that see all keys.
    fn rope(&self, head_dim: usize, context: usize) -> Result<Rope> {
        let g = self.g;
        let width = self.size("rope.dimension_count")?.unwrap_or(head_dim);
        let partial = self.family.rotates_part;
        if width > head_dim || width % 2 != 0 || (width != head_dim && !partial) {
            let expected = if partial {
                "an even number up to the"
            } else {
                "the"
            };
            return Err(g.bad(format!(
                "metadata \"{}\": expected {expected} head width {head_dim}, found {width}",
                self.key("rope.dimension_count")
            )));
        }
        let theta = self.number("rope.freq_base")?.unwrap_or(1e4);
        let mut rope = Rope::plain(theta, width);
        rope.divisors = divisors(g, ROPE_FREQS, width / 2)?;
        rope.magnitude = self.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let original = self.size("rope.scaling.original_context_length")?;
        let kind = g.opt_str(&self.key("rope.scaling.type"))?;
        let factor = self.number("rope.scaling.factor")?;
        let by_length = (
            divisors(g, ROPE_LONG, width / 2)?,
            divisors(g, ROPE_SHORT, width / 2)?,
        );
        rope.scaling = match (by_length, kind) {
            ((Some(long), Some(short)), None | Some("none" | "longrope")) => Scaling::Long {
                short,
                long,
                original: original.unwrap_or(context),
            },
            ((None, None), None) => {
                // A factor without a type means linear scaling.
                match factor.or(self.number("rope.scale_linear")?) {
                    None | Some(1.0) => Scaling::Default,
                    Some(factor) => Scaling::Linear { factor },
                }
            }
            ((None, None), Some("none")) => Scaling::Default,
            ((None, None), Some("linear")) => Scaling::Linear {
                factor: self.need("rope.scaling.factor", factor)?,
            },
            ((None, None), Some("yarn")) => {
                let factor = self.need("rope.scaling.factor", factor)?;
                // The factor of the file is applied in addition to the formula.
                rope.magnitude *= yarn_magnitude(factor);
                Scaling::Yarn {
                    factor,
                    fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    original: original.unwrap_or(context) as f32,
                    truncate: true,
                }
            }
            ((None, None), Some(other)) => {
                return Err(g.unsupported(format!(
                    "rotary scaling \"{other}\" is not supported; supported: none, linear, yarn, longrope"
                )));
            }
            ((Some(_), Some(_)), Some(other)) => {
                return Err(g.bad(format!(
                    "tensors \"{ROPE_LONG}\" and \"{ROPE_SHORT}\" conflict with rotary scaling \"{other}\""
                )));
            }
            ((Some(_), None), _) => return Err(missing(g, ROPE_SHORT)),
            ((None, Some(_)), _) => return Err(missing(g, ROPE_LONG)),
        };
        let key = self.key("rope.freq_base");
        rope.check()
            .map_err(|what| g.bad(format!("metadata \"{key}\": {what}")))?;
        Ok(rope)
    }

    /// The layers that see the latest keys only.
    fn window(&self, layers: usize, rope: &Rope, context: usize) -> Result<Option<Window>> {
        let name = "attention.sliding_window";
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a whole number"
        )]
        let default = self.default(name).map(|v| v as usize);
        let length = match (
            self.g.opt_usize(&self.key(name))?.or(default),
            self.family.windows,
        ) {
            (None, Windows::ExceptStated(_)) => self.need_size(name)?,
            // Some writers use 0 for none.
            (None | Some(0), _) => return Ok(None),
            (Some(length), Windows::Never | Windows::Switched) if length < context => {
                let name = self.family.name;
                return Err(self.g.unsupported(format!(
                    "attention over a window of {length} tokens is not supported for {name}"
                )));
            }
            (Some(length), _) => length,
        };
        let own = if self.family.local_rope {
            let theta = self.number("rope.freq_base_swa")?.unwrap_or(1e4);
            Some(Rope::plain(theta, rope.width))
        } else {
            None
        };
        Ok(Window::new(length, self.family.windows(layers), own, context))
    }

    /// The scale of attention scores.
    fn scale(&self, layers: usize, hidden: usize, heads: usize, head_dim: usize) -> Result<f32> {
        let name = "attention.scale";
        if let Some(scale) = self.number_or_off(name)? {
            return Ok(scale);
        }
        // The largest of these models have another scale, which files do not tell.
        let width = if self.family.scaled_by_width == Some(layers) {
            hidden / heads
        } else {
            head_dim
        };
        Ok(1.0 / (width as f32).sqrt())
    }
}

/// Reads and checks the metadata. An error names the key, what was expected and what was found.
pub fn params(g: &Gguf) -> Result<Params> {
    let name = g.required("general.architecture", g.opt_str("general.architecture")?)?;
    let found = |name: &str| ALL.into_iter().find(|f| f.name == name);
    let family = found(name).ok_or_else(|| {
        let all = ALL.into_iter().filter(|f| found(f.name) == Some(*f));
        let names: Vec<_> = all.map(|f| f.name).collect();
        let names = names.join(", ");
        g.unsupported(format!(
            "architecture \"{name}\" is not supported; supported: {names}"
        ))
    })?;
    let m = Metadata { g, family };
    m.check_foreign()?;

    let layers = m.need_size("block_count")?;
    // Checked before anything is sized by it.
    if layers > g.tensors().len() {
        let tensors = g.tensors().len();
        return Err(g.bad(format!(
            "{layers} layers in the metadata, but only {tensors} tensors"
        )));
    }
    let hidden = m.need_size("embedding_length")?;
    let width_key = "feed_forward_length";
    let intermediate = m.need(width_key, m.size_of_layers(width_key, layers)?)?;
    let context = m.need_size("context_length")?;
    let (heads, kv_heads, head_dim) = m.heads(hidden, layers)?;
    let eps_key = "attention.layer_norm_rms_epsilon";
    let eps = m.need(eps_key, m.number(eps_key)?)?;

    let vocab = m.vocabulary(hidden)?;
    let rope = m.rope(head_dim, context)?;
    let bias = |name: &str| g.tensor(&format!("blk.0.{name}.bias")).is_some();
    let window = m.window(layers, &rope, context)?;
    let named = family.windowed.filter(|_| window.is_some());
    let params = Params {
        family: named.unwrap_or(family),
        layers,
        hidden,
        intermediate,
        heads,
        kv_heads,
        head_dim,
        window,
        rope,
        scale: m.scale(layers, hidden, heads, head_dim)?,
        score_cap: m.number_or_off("attn_logit_softcapping")?,
        logit_cap: m.number_or_off("final_logit_softcapping")?,
        // Files of Gemma hold the weights with the 1 added.
        norm_offset: 0.0,
        eps,
        vocab,
        context,
        tied: g.tensor("output.weight").is_none(),
        qkv_bias: bias("attn_q") || bias("attn_qkv"),
        output_bias: bias("attn_output"),
        mlp_bias: bias("ffn_gate") || (family.joins_projections && bias("ffn_up")),
    };
    check_sizes(&GgufTensors::new(g, &params), &params)?;
    Ok(params)
}

pub fn expect_dims(g: &Gguf, info: &TensorInfo, dims: &[usize]) -> Result<()> {
    if info.dims == dims {
        return Ok(());
    }
    let (name, found) = (&info.name, &info.dims);
    Err(g.bad(format!(
        "tensor \"{name}\": expected sizes {dims:?} according to the metadata, found {found:?}"
    )))
}

pub fn missing(g: &Gguf, name: &str) -> Error {
    g.bad(format!("tensor \"{name}\" is missing"))
}

/// The tensor of divisors of the rotary frequencies.
const ROPE_FREQS: &str = "rope_freqs.weight";
/// The tensor of divisors for long sequences.
const ROPE_LONG: &str = "rope_factors_long.weight";
/// The tensor of divisors for short sequences.
const ROPE_SHORT: &str = "rope_factors_short.weight";
/// Tensors that become part of the rotary frequencies.
pub const ROPE_TENSORS: [&str; 3] = [ROPE_FREQS, ROPE_LONG, ROPE_SHORT];

/// The `count` positive numbers of a tensor, if the file has it.
fn divisors(g: &Gguf, name: &str, count: usize) -> Result<Option<Vec<f32>>> {
    let Some(info) = g.tensor(name) else {
        return Ok(None);
    };
    expect_dims(g, info, &[count])?;
    let mut found = memory::zeros(count, name)?;
    g.read_f32(info, 0, &mut found)?;
    match found.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
        Some(v) => Err(g.bad(format!("tensor \"{name}\": expected positive numbers, found {v}"))),
        None => Ok(Some(found)),
    }
}
