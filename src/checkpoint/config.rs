//! `config.json` of a Hugging Face checkpoint: the model's sizes, and how its matrices are quantized.

use super::awq::Awq;
use super::gptq::Gptq;
use super::{ARCHITECTURES, Params};
use crate::error::{Error, Result, Stage};
use crate::quant::Bits;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A head this wide is no head.
const MAX_HEAD: usize = 1 << 16;

/// How the quantized matrices of a checkpoint are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// See [`Gptq`].
    Gptq(Gptq),
    /// See [`Awq`].
    Awq(Awq),
}

/// An object of a JSON file.
pub struct Config {
    path: PathBuf,
    /// Place of the object in the file, as a prefix of its keys.
    inside: String,
    /// Its entries.
    pub map: Map<String, Value>,
}

impl Config {
    /// The file `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|e| Error::io("cannot read", path, e))?;
        let map = serde_json::from_slice(&text)
            .map_err(|e| Error::parse(Stage::Convert, path, "expected an object in JSON", e))?;
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

    /// A value that is there and not null.
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
        let positive = |v: &Value| {
            v.as_u64()
                .and_then(|v| usize::try_from(v).ok())
                .filter(|v| *v > 0)
        };
        self.typed(key, "a positive integer", positive)
    }

    fn number(&self, key: &str) -> Result<Option<f32>> {
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let positive = |v: &Value| v.as_f64().map(|v| v as f32).filter(|v| v.is_finite() && *v > 0.0);
        self.typed(key, "a positive number", positive)
    }

    fn truth(&self, key: &str) -> Result<bool> {
        Ok(self.typed(key, "a truth value", Value::as_bool)?.unwrap_or(false))
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
        Err(self.bad(key, format!("\"{value}\" is not supported; supported: {list}")))
    }

    /// Sizes and numbers of the model. `has` tells whether a tensor of that name exists.
    pub fn params(&self, has: impl Fn(&str) -> bool) -> Result<Params> {
        let architecture = self.need("model_type", self.text("model_type")?)?;
        self.one_of("model_type", architecture, &ARCHITECTURES)?;
        self.one_of(
            "hidden_act",
            self.text("hidden_act")?.unwrap_or("silu"),
            &["silu"],
        )?;
        let need = |key: &str| self.need(key, self.size(key)?);
        let hidden = need("hidden_size")?;
        let heads = need("num_attention_heads")?;
        let kv_heads = self.size("num_key_value_heads")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            let what = format!("{heads} query heads are not a multiple of {kv_heads} key heads");
            return Err(self.bad("num_key_value_heads", what));
        }
        let head_dim = match self.size("head_dim")? {
            Some(v) => v,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                let what = format!("width {hidden} is not a multiple of {heads} heads");
                return Err(self.bad("num_attention_heads", what));
            }
        };
        if head_dim % 2 != 0 || head_dim > MAX_HEAD {
            let what = format!("expected heads of an even width up to {MAX_HEAD}, found {head_dim}");
            return Err(self.bad("head_dim", what));
        }
        let context = need("max_position_embeddings")?;
        if self.truth("use_sliding_window")? && self.size("sliding_window")?.is_some_and(|w| w < context) {
            return Err(self.bad("use_sliding_window", "attention over a window is not supported"));
        }
        if self.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
            return Err(self.bad(
                "partial_rotary_factor",
                "heads that are rotated in part are not supported",
            ));
        }
        let layer = |name: &str| has(&format!("model.layers.0.{name}.bias"));
        // Newer files have all of it in one object.
        let rope = self.inner("rope_parameters")?;
        let theta = match &rope {
            Some(rope) => rope.number("rope_theta")?,
            None => self.number("rope_theta")?,
        };
        let mut params = Params {
            architecture: architecture.to_owned(),
            layers: need("num_hidden_layers")?,
            hidden,
            intermediate: need("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            rope_theta: theta.unwrap_or(10_000.0),
            rope_factor: 1.0,
            rope_factors: vec![1.0; head_dim / 2],
            eps: self.need("rms_norm_eps", self.number("rms_norm_eps")?)?,
            vocab: need("vocab_size")?,
            context,
            tied: self.truth("tie_word_embeddings")?,
            qkv_bias: layer("self_attn.q_proj"),
            output_bias: layer("self_attn.o_proj"),
            mlp_bias: layer("mlp.gate_proj"),
        };
        if let Some(scaling) = rope.map_or_else(|| self.inner("rope_scaling"), |r| Ok(Some(r)))? {
            scaling.rope(&mut params)?;
        }
        Ok(params)
    }

    /// The object on the scaling of rotary frequencies.
    fn rope(&self, params: &mut Params) -> Result<()> {
        let kind = self
            .text("rope_type")?
            .or(self.text("type")?)
            .unwrap_or("default");
        self.one_of("rope_type", kind, &["default", "linear", "llama3"])?;
        let need = |key: &str| self.need(key, self.number(key)?);
        match kind {
            "linear" => params.rope_factor = need("factor")?,
            "llama3" => {
                let [factor, low, high, old] = [
                    need("factor")?,
                    need("low_freq_factor")?,
                    need("high_freq_factor")?,
                    need("original_max_position_embeddings")?,
                ]
                .map(f64::from);
                let width = params.head_dim as f64;
                for (i, divisor) in params.rope_factors.iter_mut().enumerate() {
                    let frequency = f64::from(params.rope_theta).powf(-2.0 * i as f64 / width);
                    // Turns within the context that the model was first made for.
                    let turns = old * frequency / std::f64::consts::TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    #[expect(clippy::cast_possible_truncation, reason = "factors are f32")]
                    let found = (1.0 / (kept + (1.0 - kept) / factor)) as f32;
                    *divisor = found;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How the matrices are quantized: what the object under `quantization_config` says, or a file beside this one that older tools
    /// write.
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
            if self.typed("zero_point", "a truth value", Value::as_bool)? == Some(false) {
                return Err(self.bad("zero_point", "matrices without zero points are not supported"));
            }
            return Ok(Scheme::Awq(Awq { group }));
        }
        let supported = [Bits::Two, Bits::Three, Bits::Four, Bits::Eight];
        let bits = Bits::new(bits)
            .filter(|b| supported.contains(b))
            .ok_or_else(|| self.bad("bits", format!("expected 2, 3, 4 or 8, found {bits}")))?;
        let format = self.text("checkpoint_format")?.unwrap_or("gptq");
        self.one_of("checkpoint_format", format, &["gptq", "gptq_v2"])?;
        if self.truth("is_marlin_format")? {
            return Err(self.bad(
                "is_marlin_format",
                "is not supported; supported are gptq and gptq_v2",
            ));
        }
        if self
            .get("dynamic")
            .and_then(Value::as_object)
            .is_some_and(|d| !d.is_empty())
        {
            return Err(self.bad("dynamic", "bits that differ by module are not supported"));
        }
        Ok(Scheme::Gptq(Gptq {
            bits,
            group,
            plain_zeros: format == "gptq_v2",
        }))
    }
}
