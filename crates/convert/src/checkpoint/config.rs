//! `config.json` of a Hugging Face checkpoint: model sizes, and how matrices are quantized.

use super::awq::Awq;
use super::gptq::Gptq;
use super::params::{Params, Window, head_size};
use super::rope::{Rope, Scaling, long_magnitude, yarn_magnitude};
use crate::families::{ALL, Family, Windows};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::files::read::read_config;
use transformer_lite::unstable::quant::Bits;

/// A number, which some programs write as a string.
fn float(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        _ => value.as_f64(),
    }
}

/// A non-negative integer, which some programs write with a fraction of zeros or as a string.
fn whole(value: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a whole number that f64 holds exactly"
    )]
    let of_float = |v: f64| (v.fract() == 0.0 && (0.0..9e15).contains(&v)).then_some(v as u64);
    value.as_u64().or_else(|| float(value).and_then(of_float))
}

/// Quantization scheme of a checkpoint's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Gptq(Gptq),
    Awq(Awq),
}

/// A JSON object in the file.
#[derive(Clone)]
pub struct Config {
    path: PathBuf,
    /// Path of the object in the file, as a prefix of its keys.
    inside: String,
    pub map: Map<String, Value>,
}

impl Config {
    /// Reads the file `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let text = read_config(path)?;
        let map = serde_json::from_slice(&text)
            .map_err(|e| Error::parse(Stage::Convert, path, "expected a JSON object", e))?;
        Ok(Self {
            path: path.to_owned(),
            inside: String::new(),
            map,
        })
    }

    fn bad(&self, key: &str, what: impl AsRef<str>) -> Error {
        let what = format!("\"{}{key}\": {}", self.inside, what.as_ref());
        Error::file(Stage::Convert, &self.path, what)
    }

    /// An error for a valid value that is not implemented.
    fn unsupported(&self, key: &str, what: impl AsRef<str>) -> Error {
        self.bad(key, what).of_kind(ErrorKind::Unsupported)
    }

    /// A value that exists and is not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        get: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.get(key)
            .map(|v| get(v).ok_or_else(|| self.bad(key, format!("expected {expected}, found {v}"))))
            .transpose()
    }

    fn size(&self, key: &str) -> Result<Option<usize>> {
        let positive = |v: &Value| whole(v).and_then(|v| usize::try_from(v).ok()).filter(|v| *v > 0);
        self.typed(key, "a positive integer", positive)
    }

    fn number(&self, key: &str) -> Result<Option<f32>> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
        let positive = |v: &Value| float(v).map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0);
        self.typed(key, "a positive number", positive)
    }

    fn truth(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |v| match v {
            Value::String(text) => text.trim().to_ascii_lowercase().parse().ok(),
            _ => v.as_bool(),
        })
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(v) => Err(self.bad(key, format!("expected a string, found {v}"))),
        }
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(key, "is missing"))
    }

    /// The object under a key.
    fn inner(&self, key: &str) -> Result<Option<Self>> {
        let map = self.typed(key, "an object", |v| v.as_object().cloned())?;
        Ok(map.map(|map| Self {
            path: self.path.clone(),
            inside: format!("{}{key}.", self.inside),
            map,
        }))
    }

    fn one_of(&self, key: &str, value: &str, supported: &[&str]) -> Result<()> {
        if supported.contains(&value) {
            return Ok(());
        }
        let list = supported.join(", ");
        Err(self.unsupported(key, format!("\"{value}\" is not supported; supported: {list}")))
    }

    /// The family of the model. An error, with a list, for one that is not supported.
    pub fn family(&self) -> Result<&'static Family> {
        let model_type = self.need("model_type", self.text("model_type")?)?;
        let known = |f: &&Family| f.model_type == model_type || f.with_images == Some(model_type);
        let names = ALL.iter().map(|f| f.model_type);
        let names: Vec<_> = names.chain(ALL.iter().filter_map(|f| f.with_images)).collect();
        self.one_of("model_type", model_type, &names)?;
        self.need("model_type", ALL.into_iter().find(known))
    }

    /// The configuration of the text model. A model that also reads images has it in an inner
    /// object; the special tokens next to that object are added.
    pub fn text_model(mut self) -> Result<Self> {
        let family = self.family()?;
        if self.text("model_type")? != family.with_images {
            return Ok(self);
        }
        let mut text = self.need("text_config", self.inner("text_config")?)?;
        for key in [
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "tie_word_embeddings",
        ] {
            if let (false, Some(v)) = (text.map.contains_key(key), self.map.shift_remove(key)) {
                text.map.insert(key.to_owned(), v);
            }
        }
        text.map.insert("model_type".to_owned(), family.model_type.into());
        text.map
            .insert("architectures".to_owned(), vec![family.class].into());
        Ok(text)
    }

    /// With the values that the library assumes.
    pub fn with_defaults(&self) -> Result<Self> {
        let (family, mut all) = (self.family()?, self.clone());
        all.map
            .retain(|key, v| !v.is_null() || family.config.iter().all(|(k, _)| k != key));
        for (key, value) in family.config.iter().chain(family.config_unless_null) {
            all.map.entry(*key).or_insert_with(|| (*value).into());
        }
        Ok(all)
    }

    fn need_size(&self, key: &str) -> Result<usize> {
        self.need(key, self.size(key)?)
    }

    /// Sizes and numbers of the model; `self` has the defaults. `has` tells whether a tensor of
    /// that name exists; there are `tensors` of them.
    pub fn params(&self, tensors: usize, has: impl Fn(&str) -> bool) -> Result<Params> {
        let family = self.family()?;
        self.activation(family)?;
        let layers = self.need_size("num_hidden_layers")?;
        if layers > tensors {
            let what = format!("{layers} layers, but the checkpoint has only {tensors} tensors");
            return Err(self.bad("num_hidden_layers", what));
        }
        let hidden = self.need_size("hidden_size")?;
        let heads = self.need_size("num_attention_heads")?;
        let kv_heads = match self.size("num_key_value_heads")? {
            None if !family.states_kv_heads => heads,
            kv_heads => self.need("num_key_value_heads", kv_heads)?,
        };
        let head_dim = head_size(hidden, [heads, kv_heads], self.size("head_dim")?)
            .map_err(|(key, what)| self.bad(key, what))?;
        let context = self.need_size("max_position_embeddings")?;
        let (rope, local) = self.ropes(family, head_dim, context)?;
        let scalar = if family.normalizes_results {
            self.number("query_pre_attn_scalar")?
        } else {
            None
        };
        let layer = |name: &str| has(&format!("model.layers.0.{name}.bias"));
        Ok(Params {
            family,
            layers,
            hidden,
            intermediate: self.need_size("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            rope,
            window: self.window(family, layers, context, local)?,
            scale: 1.0 / scalar.unwrap_or(head_dim as f32).sqrt(),
            score_cap: self.number("attn_logit_softcapping")?,
            logit_cap: self.number("final_logit_softcapping")?,
            norm_offset: family.norm_offset,
            eps: self.need("rms_norm_eps", self.number("rms_norm_eps")?)?,
            vocab: self.need_size("vocab_size")?,
            context,
            tied: self.truth("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: layer("self_attn.q_proj") || layer("self_attn.qkv_proj"),
            output_bias: layer("self_attn.o_proj"),
            mlp_bias: layer("mlp.gate_proj") || layer("mlp.gate_up_proj"),
        })
    }

    fn activation(&self, family: &Family) -> Result<()> {
        let (key, supported): (_, &[&str]) = if !family.gelu {
            ("hidden_act", &["silu"])
        } else if self.get("hidden_activation").is_some() {
            ("hidden_activation", &["gelu_pytorch_tanh"])
        } else {
            // The first Gemma files say `gelu` but mean the tanh form.
            ("hidden_act", &["gelu_pytorch_tanh", "gelu"])
        };
        match self.text(key)? {
            Some(found) => self.one_of(key, found, supported),
            None => Ok(()),
        }
    }

    /// Which layers use a sliding window. `rope` is their rotary embedding.
    fn window(
        &self,
        family: &Family,
        layers: usize,
        context: usize,
        rope: Option<Rope>,
    ) -> Result<Option<Window>> {
        let on = self.truth("use_sliding_window")?;
        let length = match family.windows {
            Windows::Never => None,
            Windows::Switched if on != Some(true) => None,
            // Models with a window have another type.
            _ if family.windowed.is_some() => None,
            _ => self.size("sliding_window")?,
        };
        let Some(length) = length else {
            return match on {
                Some(true) => {
                    Err(self.bad("use_sliding_window", "is true, but \"sliding_window\" is missing"))
                }
                _ => Ok(None),
            };
        };
        let kind = |v: &Value| match v.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            _ => None,
        };
        let list = |v: &Value| v.as_array()?.iter().map(kind).collect::<Option<Vec<_>>>();
        let expected = format!("{layers} times full_attention or sliding_attention");
        let listed = self.typed("layer_types", &expected, |v| {
            list(v).filter(|list| list.len() == layers)
        })?;
        let of = match (listed, family.windows) {
            (Some(listed), _) => listed,
            (None, Windows::Switched) => {
                let first = self.need(
                    "max_window_layers",
                    self.typed("max_window_layers", "an integer", whole)?,
                )?;
                (0..layers as u64).map(|i| i >= first).collect()
            }
            (None, Windows::ExceptStated(period)) => {
                let period = self.size("sliding_window_pattern")?.unwrap_or(period);
                (1..=layers).map(|i| !i.is_multiple_of(period)).collect()
            }
            (None, _) => family.windows(layers),
        };
        Ok(Window::new(length, of, rope, context))
    }

    /// The rotary embeddings of full-attention layers and, if different, of sliding-window layers.
    fn ropes(&self, family: &Family, head_dim: usize, context: usize) -> Result<(Rope, Option<Rope>)> {
        // Newer files use one object, or one per kind of layer.
        let all = self.inner("rope_parameters")?;
        let (full, local) = match &all {
            Some(all) if all.get("full_attention").is_some() => {
                (all.inner("full_attention")?, all.inner("sliding_attention")?)
            }
            _ => (all, None),
        };
        let full = match full {
            Some(full) => Some(full),
            None => self.inner("rope_scaling")?,
        };
        let either = |object: &Option<Self>, key: &str, here: &str| -> Result<Option<f32>> {
            let inside = object.as_ref().map(|o| o.number(key)).transpose()?.flatten();
            Ok(inside.or(self.number(here)?))
        };
        let share = either(&full, "partial_rotary_factor", "partial_rotary_factor")?.unwrap_or(1.0);
        if share != 1.0 && !family.rotates_part {
            let what = "partially rotated heads are not supported";
            return Err(self.unsupported("partial_rotary_factor", what));
        }
        #[expect(clippy::cast_possible_truncation, reason = "the library truncates")]
        #[expect(clippy::cast_sign_loss, reason = "the value is positive")]
        let width = (head_dim as f64 * f64::from(share)) as usize;
        if width == 0 || width > head_dim || !width.is_multiple_of(2) {
            let what = format!("expected an even number of up to {head_dim} elements, found {width}");
            return Err(self.bad("partial_rotary_factor", what));
        }
        let rope = |object: Option<Self>, key: &str| -> Result<Rope> {
            let theta = either(&object, "rope_theta", key)?.unwrap_or(1e4);
            let mut rope = Rope::plain(theta, width);
            if let Some(scaling) = object {
                (rope.scaling, rope.magnitude) = scaling.scaling(self, width, context)?;
            }
            rope.check().map_err(|what| self.bad(key, what))?;
            Ok(rope)
        };
        let full = rope(full, "rope_theta")?;
        let local = family.local_rope.then(|| rope(local, "rope_local_base_freq"));
        Ok((full, local.transpose()?))
    }

    /// The scaling of rotary frequencies in this object, and the factor for cosines and sines.
    /// `top` is the model's configuration.
    fn scaling(&self, top: &Self, width: usize, context: usize) -> Result<(Scaling, f32)> {
        let kind = self
            .text("rope_type")?
            .or(self.text("type")?)
            .unwrap_or("default");
        let supported = ["default", "linear", "llama3", "yarn", "longrope", "su"];
        self.one_of("rope_type", kind, &supported)?;
        let need = |key: &str| self.need(key, self.number(key)?);
        let magnitude = self.number("attention_factor")?;
        let original = "original_max_position_embeddings";
        Ok(match kind {
            "linear" => {
                let factor = need("factor")?;
                (Scaling::Linear { factor }, 1.0)
            }
            "llama3" => {
                let scaling = Scaling::Llama3 {
                    factor: need("factor")?,
                    low: need("low_freq_factor")?,
                    high: need("high_freq_factor")?,
                    original: need(original)?,
                };
                (scaling, 1.0)
            }
            "yarn" => {
                let factor = need("factor")?;
                let scaling = Scaling::Yarn {
                    factor,
                    fast: self.number("beta_fast")?.unwrap_or(32.0),
                    slow: self.number("beta_slow")?.unwrap_or(1.0),
                    original: self.number(original)?.unwrap_or(context as f32),
                    truncate: self.truth("truncate")?.unwrap_or(true),
                };
                let inferred = match (self.number("mscale")?, self.number("mscale_all_dim")?) {
                    (Some(m), Some(all)) => {
                        let of = |m: f32| m * (yarn_magnitude(factor) - 1.0) + 1.0;
                        of(m) / of(all)
                    }
                    _ => yarn_magnitude(factor),
                };
                (scaling, magnitude.unwrap_or(inferred))
            }
            "longrope" | "su" => {
                let first = top.size(original)?.or(self.size(original)?);
                let factor = match (first, self.number("factor")?) {
                    (Some(first), _) => context as f64 / first as f64,
                    (None, factor) => f64::from(factor.unwrap_or(1.0)),
                };
                let original = first.unwrap_or(context);
                let scaling = Scaling::Long {
                    short: self.divisors("short_factor", width / 2)?,
                    long: self.divisors("long_factor", width / 2)?,
                    original,
                };
                (
                    scaling,
                    magnitude.unwrap_or_else(|| long_magnitude(factor, original)),
                )
            }
            _ => (Scaling::Default, 1.0),
        })
    }

    /// A list of `count` positive numbers.
    fn divisors(&self, key: &str, count: usize) -> Result<Vec<f32>> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
        let number = |v: &Value| v.as_f64().map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0);
        let list = |v: &Value| v.as_array()?.iter().map(number).collect::<Option<Vec<_>>>();
        let expected = format!("a list of {count} positive numbers");
        let found = self.typed(key, &expected, |v| list(v).filter(|list| list.len() == count))?;
        self.need(key, found)
    }

    /// The quantization scheme: the object `quantization_config`, or a separate file that older
    /// tools write.
    pub fn scheme(&self) -> Result<Option<Scheme>> {
        if let Some(inner) = self.inner("quantization_config")? {
            let method = inner.need("quant_method", inner.text("quant_method")?)?;
            inner.one_of("quant_method", method, &["gptq", "awq"])?;
            return inner.read_scheme(method).map(Some);
        }
        for (file, method) in [("quantize_config.json", "gptq"), ("quant_config.json", "awq")] {
            let path = self.path.with_file_name(file);
            if path.is_file() {
                return Self::open(&path)?.read_scheme(method).map(Some);
            }
        }
        Ok(None)
    }

    fn read_scheme(&self, method: &str) -> Result<Scheme> {
        let either = |a: &'static str, b: &'static str| if self.get(a).is_some() { a } else { b };
        let key = either("bits", "w_bit");
        let bits = self.need("bits", self.typed(key, "an integer", Value::as_i64)?)?;
        let key = either("group_size", "q_group_size");
        let group = self.need("group_size", self.typed(key, "an integer", Value::as_i64)?)?;
        let group = match usize::try_from(group) {
            Ok(g) if g > 0 => Some(g),
            _ if group == -1 => None,
            _ => return Err(self.bad(key, format!("expected a positive number or -1, found {group}"))),
        };
        if method == "awq" {
            if bits != 4 {
                return Err(self.bad("bits", format!("expected 4, found {bits}")));
            }
            let version = self.text("version")?.unwrap_or("gemm").to_lowercase();
            self.one_of("version", &version, &["gemm"])?;
            self.one_of(
                "backend",
                self.text("backend")?.unwrap_or("autoawq"),
                &["autoawq"],
            )?;
            if self.truth("zero_point")? == Some(false) {
                return Err(self.unsupported(
                    "zero_point",
                    "expected true: matrices without zero points are not supported",
                ));
            }
            return Ok(Scheme::Awq(Awq { group }));
        }
        let supported = [Bits::Two, Bits::Three, Bits::Four, Bits::Eight];
        let bits = Bits::new(bits)
            .filter(|b| supported.contains(b))
            .ok_or_else(|| self.bad("bits", format!("expected 2, 3, 4 or 8, found {bits}")))?;
        let format = self.text("checkpoint_format")?.unwrap_or("gptq");
        self.one_of("checkpoint_format", format, &["gptq", "gptq_v2"])?;
        if self.truth("is_marlin_format")? == Some(true) {
            return Err(self.unsupported("is_marlin_format", "is not supported; supported: gptq, gptq_v2"));
        }
        if self
            .get("dynamic")
            .and_then(Value::as_object)
            .is_some_and(|d| !d.is_empty())
        {
            return Err(self.unsupported("dynamic", "different bits per module are not supported"));
        }
        Ok(Scheme::Gptq(Gptq {
            bits,
            group,
            plain_zeros: format == "gptq_v2",
        }))
    }
}
