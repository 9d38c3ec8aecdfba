//! Llama and its relatives Qwen and Gemma.

use super::Family;
use super::builder::{
    Exporter,
    Length::{Is, Of},
};
use crate::builder::{BATCH, Builder, axis, cache_names, perm};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::tensor::{DType, HostTensor};

impl Builder<Exporter<'_>> {
    pub(super) fn llama(&mut self) -> Result<()> {
        let s = self.source.spec;
        self.signature(self.source.float, s.vocab, s.layers, |length| {
            [BATCH.into(), s.kv_heads.into(), length.into(), s.head_dim.into()]
        })?;
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
            let scope = format!("/model/layers.{layer}");
            let normed = self.norm(&format!("{scope}/input_layernorm"), &x)?;
            let mixed = self.attention(layer, &normed, &mask, &angles)?;
            x = self.node("Add", &scope, &[&x, &mixed], &[])?;
            let normed = self.norm(&format!("{scope}/post_attention_layernorm"), &x)?;
            let mlp = self.mlp(&format!("{scope}/mlp"), &normed)?;
            x = self.node("Add", &scope, &[&x, &mlp], &[])?;
        }
        let x = self.norm("/model/norm", &x)?;
        self.head("/lm_head", embedding, &x, Some("logits")).map(|_| ())
    }

    /// Cosines and sines of the rotary angles: `[batch, sequence, head_dim]` with an axis of size 1
    /// for the heads.
    fn angles(&mut self, scope: &str) -> Result<[String; 2]> {
        let frequencies = self.frequencies(self.source.spec.head_dim);
        let shape = [1, frequencies.len(), 1];
        let frequencies = self.shared("inv_freq".to_owned(), HostTensor::from_f32(&shape, &frequencies))?;
        let batch = self.size(scope, "position_ids", 0)?;
        let frequencies = self.expand(scope, &frequencies, &[Of(&batch), Is(-1), Is(1)])?;
        let positions = self.unsqueeze(scope, "position_ids", &[1])?;
        let positions = self.cast(scope, &positions, DType::F32)?;
        let angles = self.node("MatMul", scope, &[&frequencies, &positions], &[])?;
        let angles = self.node("Transpose", scope, &[&angles], &perm(&[0, 2, 1]))?;
        let angles = self.node("Concat", scope, &[&angles, &angles], &axis(-1))?;
        let mut out = [String::new(), String::new()];
        for (out, op) in out.iter_mut().zip(["Cos", "Sin"]) {
            let mut v = self.node(op, scope, &[&angles], &[])?;
            if self.source.float != DType::F32 {
                v = self.cast(scope, &v, self.source.float)?;
            }
            *out = self.unsqueeze(scope, &v, &[1])?;
        }
        Ok(out)
    }

    pub(super) fn frequencies(&self, dim: usize) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| 1.0 / self.source.spec.theta.powf(2.0 * i as f32 / dim as f32))
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
        let s = self.source.spec;
        let scope = &format!("/model/layers.{layer}/self_attn");
        let dim = s.head_dim;
        let bias = s.family == Family::Qwen;
        let (batch, sequence) = (self.size(scope, x, 0)?, self.size(scope, x, 1)?);
        let mut heads = |part: &str, heads: usize| -> Result<String> {
            let v = self.linear(&format!("{scope}/{part}"), x, [s.hidden, heads * dim], bias)?;
            let sizes = [Of(&batch), Of(&sequence), Is(signed(heads)), Is(signed(dim))];
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
            let [past, present] = cache_names(layer, part);
            self.node_as("Concat", scope, &[&past, new], &axis(-2), &present)?;
            whole.push(self.repeat(scope, present)?);
        }
        let (k, v) = (&whole[0], &whole[1]);
        let scores = self.scores(scope, &q, k)?;
        let total = self.size(scope, k, 2)?;
        let total = self.unsqueeze(scope, &total, &[0])?;
        let (zero, last, one) = (self.ints(&[0])?, self.ints(&[3])?, self.ints(&[1])?);
        let mask = self.node("Slice", scope, &[mask, &zero, &total, &last, &one], &[])?;
        let sizes = [Of(&batch), Of(&sequence), Is(signed(s.heads * dim))];
        let mixed = self.mix(scope, [&scores, &mask, v], &[0, 2, 1, 3], &sizes)?;
        self.linear(
            &format!("{scope}/o_proj"),
            &mixed,
            [s.heads * dim, s.hidden],
            false,
        )
    }

    /// Repeats keys or values `[batch, kv_heads, total, head_dim]` for each query head.
    fn repeat(&mut self, scope: &str, x: String) -> Result<String> {
        let s = self.source.spec;
        let times = s.heads / s.kv_heads;
        if times == 1 {
            return Ok(x);
        }
        let lengths: Vec<String> = (0..4).map(|a| self.size(scope, &x, a)).collect::<Result<_>>()?;
        let of = |i: usize| Of(&lengths[i]);
        let wide = self.unsqueeze(scope, &x, &[2])?;
        let sizes = [of(0), of(1), Is(signed(times)), of(2), of(3)];
        let wide = self.expand(scope, &wide, &sizes)?;
        let times = self.int(signed(times))?;
        let heads = self.node("Mul", scope, &[&lengths[1], &times], &[])?;
        self.view(scope, &wide, &[of(0), Of(&heads), of(2), of(3)])
    }

    fn mlp(&mut self, scope: &str, x: &str) -> Result<String> {
        let s = self.source.spec;
        let gate = self.linear(&format!("{scope}/gate_proj"), x, [s.hidden, s.inner], false)?;
        let up = self.linear(&format!("{scope}/up_proj"), x, [s.hidden, s.inner], false)?;
        let act = format!("{scope}/act_fn");
        let gate = if s.family == Family::Gemma {
            self.gelu(&act, &gate)?
        } else {
            self.silu(&act, &gate)?
        };
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        self.linear(&format!("{scope}/down_proj"), &gated, [s.inner, s.hidden], false)
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
