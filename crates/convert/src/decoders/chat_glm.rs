//! `ChatGLM`: sequence-first layout, fused projections, and an interleaved rotary embedding in the
//! first half of each head.

use super::builder::{
    Exporter,
    Length::{Is, Of},
};
use crate::builder::{BATCH, Builder, axis, cache_names, perm};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::tensor::{DType, HostTensor};

impl Builder<Exporter<'_>> {
    pub(super) fn chat_glm(&mut self) -> Result<()> {
        let s = self.source.spec;
        self.signature(self.source.float, s.vocab, s.layers, |length| {
            [length.into(), BATCH.into(), s.kv_heads.into(), s.head_dim.into()]
        })?;
        let root = "/transformer";
        let embedding = "transformer.embedding.word_embeddings.weight";
        let x = self.embed("/transformer/embedding", embedding, "input_ids")?;
        let mut x = self.node("Transpose", root, &[&x], &perm(&[1, 0, 2]))?;
        let past = self.size(root, "past_key_values.0.key", 0)?;
        let mask = self.mask(root, &past)?;
        let cache = self.neighbour_angles("/transformer/rotary_pos_emb")?;
        for layer in 0..s.layers {
            let scope = format!("/transformer/encoder/layers.{layer}");
            let normed = self.norm(&format!("{scope}/input_layernorm"), &x)?;
            let mixed = self.glm_attention(layer, &normed, &mask, &cache)?;
            x = self.node("Add", &scope, &[&x, &mixed], &[])?;
            let normed = self.norm(&format!("{scope}/post_attention_layernorm"), &x)?;
            let mlp = self.glm_mlp(&format!("{scope}/mlp"), &normed)?;
            x = self.node("Add", &scope, &[&mlp, &x], &[])?;
        }
        let x = self.norm("/transformer/encoder/final_layernorm", &x)?;
        let logits = self.head("/transformer/output_layer", embedding, &x, None)?;
        self.node_as("Transpose", "", &[&logits], &perm(&[1, 0, 2]), "logits")
    }

    /// Cosines and sines, interleaved: `[sequence, batch, head_dim / 4, 2]`.
    fn neighbour_angles(&mut self, scope: &str) -> Result<String> {
        let frequencies = self.frequencies(self.source.spec.head_dim / 2);
        let shape = [1, 1, frequencies.len()];
        let frequencies = self.shared("inv_freq".to_owned(), HostTensor::from_f32(&shape, &frequencies))?;
        let positions = self.cast(scope, "position_ids", DType::F32)?;
        let positions = self.node("Transpose", scope, &[&positions], &perm(&[1, 0]))?;
        let positions = self.unsqueeze(scope, &positions, &[2])?;
        let angles = self.node("Mul", scope, &[&positions, &frequencies], &[])?;
        let mut parts = Vec::new();
        for op in ["Cos", "Sin"] {
            let v = self.node(op, scope, &[&angles], &[])?;
            parts.push(self.unsqueeze(scope, &v, &[-1])?);
        }
        let cache = self.node("Concat", scope, &[&parts[0], &parts[1]], &axis(-1))?;
        if self.source.float == DType::F32 {
            return Ok(cache);
        }
        self.cast(scope, &cache, self.source.float)
    }

    /// Rotates adjacent pairs in the first half of each head of
    /// `[sequence, batch, heads, head_dim]`.
    fn rotate_neighbours(&mut self, scope: &str, x: &str, heads: usize, cache: &str) -> Result<String> {
        let dim = signed(self.source.spec.head_dim);
        let half = dim / 2;
        let sequence = self.size(scope, x, 0)?;
        let turn = self.part(scope, x, 3, 0, half)?;
        let keep = self.part(scope, x, 3, half, i64::MAX)?;
        let sizes = |heads: i64| [Of(sequence.as_str()), Is(-1), Is(heads), Is(half / 2), Is(2)];
        let pairs = self.view(scope, &turn, &sizes(signed(heads)))?;
        let cache = self.view(scope, cache, &sizes(1))?;
        let mut pick = |v: &str, i: i64| -> Result<String> {
            let i = self.int(i)?;
            self.node("Gather", scope, &[v, &i], &axis(-1))
        };
        let (even, odd) = (pick(&pairs, 0)?, pick(&pairs, 1)?);
        let (cos, sin) = (pick(&cache, 0)?, pick(&cache, 1)?);
        let mut mul = |a: &str, b: &str| self.node("Mul", scope, &[a, b], &[]);
        let (ec, os, oc, es) = (
            mul(&even, &cos)?,
            mul(&odd, &sin)?,
            mul(&odd, &cos)?,
            mul(&even, &sin)?,
        );
        let first = self.node("Sub", scope, &[&ec, &os], &[])?;
        let second = self.node("Add", scope, &[&oc, &es], &[])?;
        let first = self.unsqueeze(scope, &first, &[-1])?;
        let second = self.unsqueeze(scope, &second, &[-1])?;
        let both = self.node("Concat", scope, &[&first, &second], &axis(-1))?;
        let flat = self.ints(&[0, 0, 0, -1])?;
        let both = self.node("Reshape", scope, &[&both, &flat], &[])?;
        self.node("Concat", scope, &[&both, &keep], &axis(-1))
    }

    fn glm_attention(&mut self, layer: usize, x: &str, mask: &str, cache: &str) -> Result<String> {
        let s = self.source.spec;
        let scope = &format!("/transformer/encoder/layers.{layer}/self_attention");
        let dim = s.head_dim;
        let (q_width, kv_width) = (s.heads * dim, s.kv_heads * dim);
        let size = [s.hidden, q_width + 2 * kv_width];
        let fused = self.linear(&format!("{scope}/query_key_value"), x, size, true)?;
        let (sequence, batch) = (self.size(scope, &fused, 0)?, self.size(scope, &fused, 1)?);
        let [q, k, v] = self.split_into(scope, &fused, [q_width, kv_width, kv_width])?;
        let mut heads = |part: &str, heads: usize| -> Result<String> {
            let sizes = [Of(&sequence), Of(&batch), Is(signed(heads)), Is(signed(dim))];
            self.view(scope, part, &sizes)
        };
        let (q, k, v) = (
            heads(&q, s.heads)?,
            heads(&k, s.kv_heads)?,
            heads(&v, s.kv_heads)?,
        );
        let q = self.rotate_neighbours(scope, &q, s.heads, cache)?;
        let k = self.rotate_neighbours(scope, &k, s.kv_heads, cache)?;
        let mut whole = Vec::new();
        for (part, new) in [("key", &k), ("value", &v)] {
            let [past, present] = cache_names(layer, part);
            self.node_as("Concat", scope, &[&past, new], &axis(0), &present)?;
            let wide = self.unsqueeze(scope, &present, &[-2])?;
            let times = Is(signed(s.heads / s.kv_heads));
            let keep = || Is(-1);
            let wide = self.expand(scope, &wide, &[keep(), keep(), keep(), times, keep()])?;
            let (t, b) = (self.size(scope, &present, 0)?, self.size(scope, &present, 1)?);
            let sizes = [Of(&t), Of(&b), Is(signed(s.heads)), Is(signed(dim))];
            whole.push(self.view(scope, &wide, &sizes)?);
        }
        let turn = |b: &mut Self, v: &str| b.node("Transpose", scope, &[v], &perm(&[1, 2, 0, 3]));
        let (q, k, v) = (turn(self, &q)?, turn(self, &whole[0])?, turn(self, &whole[1])?);
        let scores = self.scores(scope, &q, &k)?;
        let sizes = [Of(&sequence), Of(&batch), Is(signed(q_width))];
        let mixed = self.mix(scope, [&scores, mask, &v], &[2, 0, 1, 3], &sizes)?;
        self.linear(&format!("{scope}/dense"), &mixed, [q_width, s.hidden], false)
    }

    fn glm_mlp(&mut self, scope: &str, x: &str) -> Result<String> {
        let s = self.source.spec;
        let size = [s.hidden, 2 * s.inner];
        let fused = self.linear(&format!("{scope}/dense_h_to_4h"), x, size, false)?;
        let [gate, up] = self.split_into(scope, &fused, [s.inner, s.inner])?;
        let gate = self.silu(scope, &gate)?;
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        self.linear(
            &format!("{scope}/dense_4h_to_h"),
            &gated,
            [s.inner, s.hidden],
            false,
        )
    }
}
