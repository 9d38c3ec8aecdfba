//! `ChatGLM`: sequence-first layout, fused projections, and an interleaved rotary embedding in the
//! first half of each head.

use super::builder::{BATCH, Builder, SizeItem, axis, perm};
use crate::onnx_int::onnx_int;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::tensor::{DType, HostTensor};

impl Builder<'_> {
    pub(super) fn chat_glm(&mut self) -> Result<()> {
        let s = self.spec;
        self.inputs()?;
        self.caches(|length| [length.into(), BATCH.into(), s.kv_heads.into(), s.head_dim.into()])?;
        let root = "/transformer";
        let embedding = "transformer.embedding.word_embeddings.weight";
        let x = self.embed("/transformer/embedding", embedding, "input_ids")?;
        let mut x = self.node("Transpose", root, &[&x], &perm(&[1, 0, 2]))?;
        let past = self.size(root, "past_key_values.0.key", 0)?;
        let mask = self.mask(root, &past)?;
        let cache = self.neighbour_angles("/transformer/rotary_pos_emb")?;
        for layer in 0..s.layers {
            let (name, scope) = (
                format!("transformer.encoder.layers.{layer}"),
                format!("/transformer/encoder/layers.{layer}"),
            );
            let normed = self.norm(
                &format!("{scope}/input_layernorm"),
                &format!("{name}.input_layernorm"),
                &x,
            )?;
            let mixed = self.glm_attention(layer, &normed, &mask, &cache)?;
            x = self.node("Add", &scope, &[&x, &mixed], &[])?;
            let after = "post_attention_layernorm";
            let normed = self.norm(&format!("{scope}/{after}"), &format!("{name}.{after}"), &x)?;
            let mlp = self.glm_mlp(&format!("{scope}/mlp"), &format!("{name}.mlp"), &normed)?;
            x = self.node("Add", &scope, &[&mlp, &x], &[])?;
        }
        let x = self.norm(
            "/transformer/encoder/final_layernorm",
            "transformer.encoder.final_layernorm",
            &x,
        )?;
        let logits = self.head("/transformer/output_layer", embedding, &x, None)?;
        self.node_as("Transpose", "", &[&logits], &perm(&[1, 0, 2]), "logits")
    }

    /// Cosines and sines, interleaved: `[sequence, batch, head_dim / 4, 2]`.
    fn neighbour_angles(&mut self, scope: &str) -> Result<String> {
        let frequencies = self.frequencies(self.spec.head_dim / 2);
        let shape = [1, 1, frequencies.len()];
        let frequencies = self.constant("inv_freq".to_owned(), HostTensor::from_f32(&shape, &frequencies))?;
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
        if self.float == DType::F32 {
            return Ok(cache);
        }
        self.cast(scope, &cache, self.float)
    }

    /// Rotates adjacent pairs in the first half of each head of
    /// `[sequence, batch, heads, head_dim]`.
    fn rotate_neighbours(&mut self, scope: &str, x: &str, heads: usize, cache: &str) -> Result<String> {
        let dim = onnx_int(self.spec.head_dim)?;
        let half = dim / 2;
        let sequence = self.size(scope, x, 0)?;
        let turn = self.part(scope, x, 3, 0, half)?;
        let keep = self.part(scope, x, 3, half, i64::MAX)?;
        let sizes = |heads: i64| {
            [
                SizeItem::Of(sequence.as_str()),
                SizeItem::Is(-1),
                SizeItem::Is(heads),
                SizeItem::Is(half / 2),
                SizeItem::Is(2),
            ]
        };
        let pairs = self.view(scope, &turn, &sizes(onnx_int(heads)?))?;
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
        let s = self.spec;
        let (name, scope) = (
            format!("transformer.encoder.layers.{layer}.self_attention"),
            format!("/transformer/encoder/layers.{layer}/self_attention"),
        );
        let scope = scope.as_str();
        let dim = s.head_dim;
        let (q_width, kv_width) = (s.heads * dim, s.kv_heads * dim);
        let fused = self.linear(
            &format!("{scope}/query_key_value"),
            &format!("{name}.query_key_value"),
            x,
            [s.hidden, q_width + 2 * kv_width],
            true,
        )?;
        let (sequence, batch) = (self.size(scope, &fused, 0)?, self.size(scope, &fused, 1)?);
        let [q, k, v] = self.split(scope, &fused, [q_width, kv_width, kv_width])?;
        let mut heads = |part: &str, heads: usize| -> Result<String> {
            let sizes = [
                SizeItem::Of(&sequence),
                SizeItem::Of(&batch),
                SizeItem::Is(onnx_int(heads)?),
                SizeItem::Is(onnx_int(dim)?),
            ];
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
            let (past, present) = (
                format!("past_key_values.{layer}.{part}"),
                format!("present.{layer}.{part}"),
            );
            self.node_as("Concat", scope, &[&past, new], &axis(0), &present)?;
            let wide = self.unsqueeze(scope, &present, &[-2])?;
            let times = SizeItem::Is(onnx_int(s.heads / s.kv_heads)?);
            let keep = || SizeItem::Is(-1);
            let wide = self.expand(scope, &wide, &[keep(), keep(), keep(), times, keep()])?;
            let (t, b) = (self.size(scope, &present, 0)?, self.size(scope, &present, 1)?);
            let sizes = [
                SizeItem::Of(&t),
                SizeItem::Of(&b),
                SizeItem::Is(onnx_int(s.heads)?),
                SizeItem::Is(onnx_int(dim)?),
            ];
            whole.push(self.view(scope, &wide, &sizes)?);
        }
        let turn = |b: &mut Self, v: &str| b.node("Transpose", scope, &[v], &perm(&[1, 2, 0, 3]));
        let (q, k, v) = (turn(self, &q)?, turn(self, &whole[0])?, turn(self, &whole[1])?);
        let turned = self.node("Transpose", scope, &[&k], &perm(&[0, 1, 3, 2]))?;
        let scores = self.node("MatMul", scope, &[&q, &turned], &[])?;
        let root = self.scalar((dim as f32).sqrt())?;
        let scores = self.node("Div", scope, &[&scores, &root], &[])?;
        let scores = self.node("Add", scope, &[&scores, mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, &v], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &perm(&[2, 0, 1, 3]))?;
        let sizes = [
            SizeItem::Of(&sequence),
            SizeItem::Of(&batch),
            SizeItem::Is(onnx_int(q_width)?),
        ];
        let mixed = self.view(scope, &mixed, &sizes)?;
        let out = format!("{scope}/dense");
        self.linear(&out, &format!("{name}.dense"), &mixed, [q_width, s.hidden], false)
    }

    fn glm_mlp(&mut self, scope: &str, name: &str, x: &str) -> Result<String> {
        let s = self.spec;
        let up = format!("{scope}/dense_h_to_4h");
        let fused = self.linear(
            &up,
            &format!("{name}.dense_h_to_4h"),
            x,
            [s.hidden, 2 * s.inner],
            false,
        )?;
        let [gate, up] = self.split(scope, &fused, [s.inner, s.inner])?;
        let sigmoid = self.node("Sigmoid", scope, &[&gate], &[])?;
        let gate = self.node("Mul", scope, &[&gate, &sigmoid], &[])?;
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        let down = format!("{scope}/dense_4h_to_h");
        self.linear(
            &down,
            &format!("{name}.dense_4h_to_h"),
            &gated,
            [s.inner, s.hidden],
            false,
        )
    }
}
