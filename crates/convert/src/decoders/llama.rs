//! Llama and its relatives Qwen and Gemma.

use super::Family;
use super::builder::{BATCH, Builder, SizeItem, axis, perm};
use crate::onnx_int::onnx_int;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::tensor::{DType, HostTensor};

impl Builder<'_> {
    pub(super) fn llama(&mut self) -> Result<()> {
        let s = self.spec;
        self.inputs()?;
        self.caches(|length| [BATCH.into(), s.kv_heads.into(), length.into(), s.head_dim.into()])?;
        let embedding = "model.embed_tokens.weight";
        let mut x = self.embed("/model/embed_tokens", embedding, "input_ids")?;
        let past = self.size("/model", "past_key_values.0.key", 2)?;
        let mask = self.mask("/model", &past)?;
        let angles = self.angles("/model/rotary_emb")?;
        if s.family == Family::Gemma {
            let scale = self.scalar((s.hidden as f32).sqrt())?;
            x = self.node("Mul", "/model", &[&x, &scale], &[])?;
        }
        for layer in 0..s.layers {
            let (name, scope) = (format!("model.layers.{layer}"), format!("/model/layers.{layer}"));
            let normed = self.norm(
                &format!("{scope}/input_layernorm"),
                &format!("{name}.input_layernorm"),
                &x,
            )?;
            let mixed = self.attention(layer, &normed, &mask, &angles)?;
            x = self.node("Add", &scope, &[&x, &mixed], &[])?;
            let after = "post_attention_layernorm";
            let normed = self.norm(&format!("{scope}/{after}"), &format!("{name}.{after}"), &x)?;
            let mlp = self.mlp(&format!("{scope}/mlp"), &format!("{name}.mlp"), &normed)?;
            x = self.node("Add", &scope, &[&x, &mlp], &[])?;
        }
        let x = self.norm("/model/norm", "model.norm", &x)?;
        self.head("/lm_head", embedding, &x, Some("logits")).map(|_| ())
    }

    /// Cosines and sines of the rotary angles: `[batch, sequence, head_dim]` with an axis of size 1
    /// for the heads.
    fn angles(&mut self, scope: &str) -> Result<[String; 2]> {
        let frequencies = self.frequencies(self.spec.head_dim);
        let shape = [1, frequencies.len(), 1];
        let frequencies = self.constant("inv_freq".to_owned(), HostTensor::from_f32(&shape, &frequencies))?;
        let batch = self.size(scope, "position_ids", 0)?;
        let frequencies = self.expand(
            scope,
            &frequencies,
            &[SizeItem::Of(&batch), SizeItem::Is(-1), SizeItem::Is(1)],
        )?;
        let positions = self.unsqueeze(scope, "position_ids", &[1])?;
        let positions = self.cast(scope, &positions, DType::F32)?;
        let angles = self.node("MatMul", scope, &[&frequencies, &positions], &[])?;
        let angles = self.node("Transpose", scope, &[&angles], &perm(&[0, 2, 1]))?;
        let angles = self.node("Concat", scope, &[&angles, &angles], &axis(-1))?;
        let mut out = [String::new(), String::new()];
        for (out, op) in out.iter_mut().zip(["Cos", "Sin"]) {
            let mut v = self.node(op, scope, &[&angles], &[])?;
            if self.float != DType::F32 {
                v = self.cast(scope, &v, self.float)?;
            }
            *out = self.unsqueeze(scope, &v, &[1])?;
        }
        Ok(out)
    }

    pub(super) fn frequencies(&self, dim: usize) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| 1.0 / self.spec.theta.powf(2.0 * i as f32 / dim as f32))
            .collect()
    }

    /// `x * cos + rotate_half(x) * sin` over `[batch, heads, sequence, head_dim]`.
    fn rotate(&mut self, scope: &str, x: &str, [cos, sin]: &[String; 2]) -> Result<String> {
        let plain = self.node("Mul", scope, &[x, cos], &[])?;
        // `x.shape[-1] // 2`, as the exporter writes it.
        let mut half = || -> Result<String> {
            let width = self.size(scope, x, 3)?;
            let two = self.int(2)?;
            let half = self.node("Div", scope, &[&width, &two], &[])?;
            let half = self.cast(scope, &half, DType::I64)?;
            self.unsqueeze(scope, &half, &[0])
        };
        let (first, second) = (half()?, half()?);
        let (zero, end, last, one) = (
            self.ints(&[0])?,
            self.ints(&[i64::MAX])?,
            self.ints(&[3])?,
            self.ints(&[1])?,
        );
        let low = self.node("Slice", scope, &[x, &zero, &first, &last, &one], &[])?;
        let high = self.node("Slice", scope, &[x, &second, &end, &last, &one], &[])?;
        let high = self.node("Neg", scope, &[&high], &[])?;
        let turned = self.node("Concat", scope, &[&high, &low], &axis(-1))?;
        let turned = self.node("Mul", scope, &[&turned, sin], &[])?;
        self.node("Add", scope, &[&plain, &turned], &[])
    }

    fn attention(&mut self, layer: usize, x: &str, mask: &str, angles: &[String; 2]) -> Result<String> {
        let s = self.spec;
        let (name, scope) = (
            format!("model.layers.{layer}.self_attn"),
            format!("/model/layers.{layer}/self_attn"),
        );
        let scope = scope.as_str();
        let dim = s.head_dim;
        let bias = s.family == Family::Qwen;
        let (batch, sequence) = (self.size(scope, x, 0)?, self.size(scope, x, 1)?);
        let mut heads = |part: &str, heads: usize| -> Result<String> {
            let v = self.linear(
                &format!("{scope}/{part}"),
                &format!("{name}.{part}"),
                x,
                [s.hidden, heads * dim],
                bias,
            )?;
            let sizes = [
                SizeItem::Of(&batch),
                SizeItem::Of(&sequence),
                SizeItem::Is(onnx_int(heads)?),
                SizeItem::Is(onnx_int(dim)?),
            ];
            let v = self.view(scope, &v, &sizes)?;
            self.node("Transpose", scope, &[&v], &perm(&[0, 2, 1, 3]))
        };
        let (q, k, v) = (
            heads("q_proj", s.heads)?,
            heads("k_proj", s.kv_heads)?,
            heads("v_proj", s.kv_heads)?,
        );
        let (q, k) = (self.rotate(scope, &q, angles)?, self.rotate(scope, &k, angles)?);
        let mut whole = Vec::new();
        for (part, new) in [("key", &k), ("value", &v)] {
            let (past, present) = (
                format!("past_key_values.{layer}.{part}"),
                format!("present.{layer}.{part}"),
            );
            self.node_as("Concat", scope, &[&past, new], &axis(-2), &present)?;
            whole.push(self.repeat(scope, present)?);
        }
        let (k, v) = (&whole[0], &whole[1]);
        let turned = self.node("Transpose", scope, &[k], &perm(&[0, 1, 3, 2]))?;
        let scores = self.node("MatMul", scope, &[&q, &turned], &[])?;
        let root = self.scalar((dim as f32).sqrt())?;
        let scores = self.node("Div", scope, &[&scores, &root], &[])?;
        let total = self.size(scope, k, 2)?;
        let total = self.unsqueeze(scope, &total, &[0])?;
        let (zero, last, one) = (self.ints(&[0])?, self.ints(&[3])?, self.ints(&[1])?);
        let mask = self.node("Slice", scope, &[mask, &zero, &total, &last, &one], &[])?;
        let scores = self.node("Add", scope, &[&scores, &mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, v], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &perm(&[0, 2, 1, 3]))?;
        let width = onnx_int(s.heads * dim)?;
        let mixed = self.view(
            scope,
            &mixed,
            &[SizeItem::Of(&batch), SizeItem::Of(&sequence), SizeItem::Is(width)],
        )?;
        let out = format!("{scope}/o_proj");
        self.linear(
            &out,
            &format!("{name}.o_proj"),
            &mixed,
            [s.heads * dim, s.hidden],
            false,
        )
    }

    /// Repeats keys or values `[batch, kv_heads, total, head_dim]` for each query head.
    fn repeat(&mut self, scope: &str, x: String) -> Result<String> {
        let s = self.spec;
        let times = s.heads / s.kv_heads;
        if times == 1 {
            return Ok(x);
        }
        let sizes: Vec<String> = (0..4).map(|a| self.size(scope, &x, a)).collect::<Result<_>>()?;
        let of = |i: usize| SizeItem::Of(&sizes[i]);
        let wide = self.unsqueeze(scope, &x, &[2])?;
        let wide = self.expand(
            scope,
            &wide,
            &[of(0), of(1), SizeItem::Is(onnx_int(times)?), of(2), of(3)],
        )?;
        let times = self.int(onnx_int(times)?)?;
        let heads = self.node("Mul", scope, &[&sizes[1], &times], &[])?;
        self.view(scope, &wide, &[of(0), SizeItem::Of(&heads), of(2), of(3)])
    }

    fn mlp(&mut self, scope: &str, name: &str, x: &str) -> Result<String> {
        let s = self.spec;
        let mut linear = |part: &str, x: &str, size| {
            self.linear(
                &format!("{scope}/{part}"),
                &format!("{name}.{part}"),
                x,
                size,
                false,
            )
        };
        let gate = linear("gate_proj", x, [s.hidden, s.inner])?;
        let up = linear("up_proj", x, [s.hidden, s.inner])?;
        let act = format!("{scope}/act_fn");
        let gate = if s.family == Family::Gemma {
            self.gelu(&act, &gate)?
        } else {
            let sigmoid = self.node("Sigmoid", &act, &[&gate], &[])?;
            self.node("Mul", &act, &[&gate, &sigmoid], &[])?
        };
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        let down = format!("{scope}/down_proj");
        self.linear(
            &down,
            &format!("{name}.down_proj"),
            &gated,
            [s.inner, s.hidden],
            false,
        )
    }

    /// The tanh form of GELU.
    fn gelu(&mut self, scope: &str, x: &str) -> Result<String> {
        let square = self.node("Mul", scope, &[x, x], &[])?;
        let cube = self.node("Mul", scope, &[x, &square], &[])?;
        let (kappa, beta) = (self.scalar(0.044_715)?, self.scalar(0.797_884_6)?);
        let (one, half) = (self.scalar(1.0)?, self.scalar(0.5)?);
        let inner = self.node("Mul", scope, &[&kappa, &cube], &[])?;
        let inner = self.node("Add", scope, &[x, &inner], &[])?;
        let inner = self.node("Mul", scope, &[&beta, &inner], &[])?;
        let tanh = self.node("Tanh", scope, &[&inner], &[])?;
        let sum = self.node("Add", scope, &[&one, &tanh], &[])?;
        let product = self.node("Mul", scope, &[x, &sum], &[])?;
        self.node("Mul", scope, &[&half, &product], &[])
    }
}
