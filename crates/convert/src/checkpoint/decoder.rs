//! Builds the ONNX graph of a decoder of any [family](crate::families).
//!
//! Names of values and nodes are those that exporters give to Hugging Face modules.

use super::params::Window;
use super::rope::Rope;
use super::weights::{Checkpoint, Matrix};
use super::{Kept, Params};
use crate::builder::{BATCH, Builder, axis, cache_names, module, perm};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::type_code;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::quota;
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Opset of the graph; the first one with `Gelu`.
const OPSET: i64 = 20;

/// The name of a constant that all layers read.
macro_rules! shared {
    ($name:literal) => {
        concat!("/model/constants/", $name)
    };
}

const EMBEDDING: &str = "model.embed_tokens.weight";

impl Builder<Checkpoint<'_>> {
    /// Builds the whole model and returns the writer, to be finished, and the weights that kept
    /// their bits.
    pub fn build(mut self) -> Result<(ModelWriter, Kept)> {
        let p = self.source.params;
        self.out.opset("", OPSET);
        self.signature(self.source.float, p.vocab, p.layers, |length| {
            if p.family.sequence_first {
                [length.into(), BATCH.into(), p.kv_heads.into(), p.head_dim.into()]
            } else {
                [BATCH.into(), p.kv_heads.into(), length.into(), p.head_dim.into()]
            }
        })?;
        let shared = Shared::add(&mut self)?;

        let (mut x, mut head) = self.embedding()?;
        for layer in 0..p.layers {
            quota::check().map_err(|e| Error::exceeded(Stage::Convert, e))?;
            x = self.layer(layer, &x, &shared)?;
        }
        let x = self.norm("/model/norm", &x, p.hidden)?;
        let scope = "/lm_head";
        if !p.tied {
            head = self.matrix("lm_head.weight", p.hidden, p.vocab, None)?;
        } else if let Matrix::Float(name) = head {
            head = Matrix::Float(self.node("Transpose", scope, &[&name], &perm(&[1, 0]))?);
        }
        match p.logit_cap {
            None if p.family.sequence_first => {
                let product = self.product(scope, &x, &head, None)?;
                self.node_as("Transpose", scope, &[&product], &perm(&[1, 0, 2]), "logits")?;
            }
            None => drop(self.product(scope, &x, &head, Some("logits"))?),
            Some(cap) => {
                let product = self.product(scope, &x, &head, None)?;
                let cap = self.scalar("/lm_head/cap", cap)?;
                let bent = self.bend(scope, &product, &cap)?;
                self.node_as("Mul", scope, &[&bent, &cap], &[], "logits")?;
            }
        }
        self.source.tensors.all_used()?;
        if !self.source.kept.weights.is_empty() || !self.source.written && self.source.keep_bits {
            self.out.opset(OWN_DOMAIN, 1);
        }
        Ok((self.out, self.source.kept))
    }

    /// The rows of the tokens, and the embedding as stored: `[vocab, hidden]` for floats.
    fn embedding(&mut self) -> Result<(String, Matrix)> {
        let p = self.source.params;
        let scope = "/model/embed_tokens";
        let shape = [p.vocab, p.hidden];
        let mut stored = self.source.tensors.stored(EMBEDDING, &shape)?;
        let (mut x, table) = match self.grids(EMBEDDING, &shape, &mut stored) {
            Some(grids) => {
                let packed = self.pack(EMBEDDING, grids, &stored, None)?;
                let x = self.packed_node("GatherE0M", scope, "input_ids", &packed, None)?;
                (x, Matrix::Packed(packed))
            }
            None => {
                self.copy(EMBEDDING, shape, &stored)?;
                let x = self.node("Gather", scope, &[EMBEDDING, "input_ids"], &[])?;
                (x, Matrix::Float(EMBEDDING.to_owned()))
            }
        };
        if p.family.scales_embedding {
            let scale = self.scalar(shared!("embedding_scale"), (p.hidden as f32).sqrt())?;
            x = self.node("Mul", scope, &[&x, &scale], &[])?;
        }
        if p.family.sequence_first {
            x = self.node("Transpose", scope, &[&x], &perm(&[1, 0, 2]))?;
        }
        Ok((x, table))
    }

    /// RMS normalization of rows of `width`, with a weight.
    fn norm(&mut self, scope: &str, x: &str, width: usize) -> Result<String> {
        let weight = format!("{}.weight", module(scope));
        self.vector(&weight, width, self.source.params.norm_offset, None)?;
        let square = self.node("Pow", scope, &[x, shared!("two")], &[])?;
        let keep = [("keepdims", Attr::Int(1))];
        let mean = self.node("ReduceMean", scope, &[&square, shared!("last_axis")], &keep)?;
        let sum = self.node("Add", scope, &[&mean, shared!("eps")], &[])?;
        let root = self.node("Sqrt", scope, &[&sum], &[])?;
        let inverse = self.node("Reciprocal", scope, &[&root], &[])?;
        let scaled = self.node("Mul", scope, &[x, &inverse], &[])?;
        self.node("Mul", scope, &[&weight, &scaled], &[])
    }

    /// `tanh(x / cap)`.
    fn bend(&mut self, scope: &str, x: &str, cap: &str) -> Result<String> {
        let divided = self.node("Div", scope, &[x, cap], &[])?;
        self.node("Tanh", scope, &[&divided], &[])
    }

    /// A projection of a layer with its weight and, if the checkpoint has one, its bias. Its
    /// results are in the order `columns` if given.
    fn linear(
        &mut self,
        scope: &str,
        x: &str,
        [inputs, outputs]: [usize; 2],
        bias: bool,
        columns: Option<&[usize]>,
    ) -> Result<String> {
        let name = module(scope);
        let weight = self.matrix(&format!("{name}.weight"), inputs, outputs, columns)?;
        let product = self.product(scope, x, &weight, None)?;
        if !bias {
            return Ok(product);
        }
        let bias = format!("{name}.bias");
        self.vector(&bias, outputs, 0.0, columns)?;
        self.node("Add", scope, &[&product, &bias], &[])
    }

    /// Rotates `x` of shape `[batch, sequence, heads, head_dim]` by the angles of its positions.
    fn rotate(&mut self, scope: &str, x: &str, angles: &Angles) -> Result<String> {
        let p = self.source.params;
        let slice = |b: &mut Self, name: &str, x: &str, from: &str, to: &str| {
            b.named_node(
                "Slice",
                &format!("{scope}/{name}"),
                &[x, from, to, shared!("axis_3"), shared!("one")],
                &[],
            )
        };
        let (mut part, mut rest) = (x.to_owned(), None);
        if p.rope.width < p.head_dim {
            let width = shared!("rotated");
            part = slice(self, "Slice_2", x, shared!("zero"), width)?;
            rest = Some(slice(self, "Slice_3", x, width, shared!("end"))?);
        }
        let turned = if p.family.sequence_first {
            self.turn_neighbours(scope, &part, angles)?
        } else {
            let plain = self.node("Mul", scope, &[&part, &angles.cos], &[])?;
            let upper = slice(self, "Slice_1", &part, shared!("half_head"), shared!("end"))?;
            let negated = self.node("Neg", scope, &[&upper], &[])?;
            let lower = slice(self, "Slice", &part, shared!("zero"), shared!("half_head"))?;
            let half_turn = self.node("Concat", scope, &[&negated, &lower], &axis(-1))?;
            let turned = self.node("Mul", scope, &[&half_turn, &angles.sin], &[])?;
            self.node("Add", scope, &[&plain, &turned], &[])?
        };
        match rest {
            None => Ok(turned),
            Some(rest) => self.node("Concat", scope, &[&turned, &rest], &axis(-1)),
        }
    }

    /// Rotates pairs of adjacent elements of `x`; an angle is for a pair.
    fn turn_neighbours(&mut self, scope: &str, x: &str, Angles { cos, sin }: &Angles) -> Result<String> {
        let at = |name: &str| format!("{scope}/{name}");
        let pairs = self.ints(&at("pairs"), &[0, 0, 0, -1, 2])?;
        let pairs = self.node("Reshape", scope, &[x, &pairs], &[])?;
        let mut element = |name: &str, i: i64| {
            let i = self.scalar_int(&at(name), i)?;
            self.node("Gather", scope, &[&pairs, &i], &axis(-1))
        };
        let (even, odd) = (element("even", 0)?, element("odd", 1)?);
        let last = self.ints(&at("last_axis"), &[-1])?;
        let mut turned = |op: &str, [a, b]: [&str; 2]| {
            let a = self.node("Mul", scope, &[&even, a], &[])?;
            let b = self.node("Mul", scope, &[&odd, b], &[])?;
            let both = self.node(op, scope, &[&a, &b], &[])?;
            self.node("Unsqueeze", scope, &[&both, &last], &[])
        };
        let (first, second) = (turned("Sub", [cos, sin])?, turned("Add", [sin, cos])?);
        let pairs = self.node("Concat", scope, &[&first, &second], &axis(-1))?;
        let joined = self.ints(&at("joined"), &[0, 0, 0, -1])?;
        self.node("Reshape", scope, &[&pairs, &joined], &[])
    }

    /// Appends new keys or values to the cache and adds a query-group axis.
    fn cache(&mut self, scope: &str, layer: usize, part: &str, new: &str) -> Result<String> {
        let [past, present] = cache_names(layer, part);
        let scope = format!("{scope}/{part}");
        let mut all = present.clone();
        if self.source.params.family.sequence_first {
            self.node_as("Concat", &scope, &[&past, new], &axis(0), &present)?;
            all = self.node("Transpose", &scope, &[&all], &perm(&[1, 2, 0, 3]))?;
        } else {
            self.node_as("Concat", &scope, &[&past, new], &axis(2), &present)?;
        }
        self.node("Unsqueeze", &scope, &[&all, shared!("axis_2")], &[])
    }

    /// Queries, keys and values, each `[batch, sequence, width]`.
    fn projections(&mut self, layer: usize, x: &str) -> Result<[String; 3]> {
        let p = self.source.params;
        let scope = &format!("/model/layers.{layer}/self_attn");
        let mut linear = |name: &str, outputs: usize| {
            let size = [p.hidden, outputs];
            self.linear(&format!("{scope}/{name}"), x, size, p.qkv_bias, None)
        };
        let (q, kv) = (p.q_width(), p.kv_width());
        if p.family.joins_projections {
            let all = linear("qkv_proj", q + 2 * kv)?;
            return self.split(scope, &all, shared!("qkv"));
        }
        Ok([linear("q_proj", q)?, linear("k_proj", kv)?, linear("v_proj", kv)?])
    }

    fn attention(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.source.params;
        let scope = &format!("/model/layers.{layer}/self_attn");
        let at = |name: &str| format!("{scope}/{name}");
        let first = p.family.sequence_first;
        let (swap, back) = if first {
            (perm(&[1, 2, 0, 3]), perm(&[2, 0, 1, 3]))
        } else {
            (perm(&[0, 2, 1, 3]), perm(&[0, 2, 1, 3]))
        };
        let (angles, mask) = s.view(p, layer);

        let [q, k, v] = self.projections(layer, x)?;
        let mut q = self.node("Reshape", &at("q"), &[&q, shared!("query_heads")], &[])?;
        let mut k = self.node("Reshape", &at("k"), &[&k, shared!("key_heads")], &[])?;
        let mut v = self.node("Reshape", &at("v"), &[&v, shared!("key_heads")], &[])?;
        if p.family.normalizes_heads {
            q = self.norm(&at("q_norm"), &q, p.head_dim)?;
            k = self.norm(&at("k_norm"), &k, p.head_dim)?;
        }
        let q = self.rotate(&at("q/rotary"), &q, angles)?;
        let mut k = self.rotate(&at("k/rotary"), &k, angles)?;
        let q = self.node("Transpose", &at("q"), &[&q], &swap)?;
        if !first {
            k = self.node("Transpose", &at("k"), &[&k], &swap)?;
            v = self.node("Transpose", &at("v"), &[&v], &swap)?;
        }
        let k = self.cache(scope, layer, "key", &k)?;
        let v = self.cache(scope, layer, "value", &v)?;

        let flip = perm(&[0, 1, 2, 4, 3]);
        let k = self.node("Transpose", &at("key"), &[&k], &flip)?;
        let q = self.node("Reshape", &at("q"), &[&q, shared!("groups")], &[])?;
        let scores = self.node("MatMul", scope, &[&q, &k], &[])?;
        let mut scores = self.node("Mul", scope, &[&scores, shared!("scale")], &[])?;
        if p.score_cap.is_some() {
            let cap = shared!("score_cap");
            scores = self.bend(scope, &scores, cap)?;
            scores = self.node("Mul", scope, &[&scores, cap], &[])?;
        }
        let scores = self.node("Add", scope, &[&scores, mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, &v], &[])?;
        let mixed = self.node("Reshape", scope, &[&mixed, shared!("merged_groups")], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &back)?;
        let mixed = self.node("Reshape", scope, &[&mixed, shared!("merged_heads")], &[])?;
        let size = [p.q_width(), p.hidden];
        self.linear(&at("o_proj"), &mixed, size, p.output_bias, None)
    }

    fn mlp(&mut self, layer: usize, x: &str) -> Result<String> {
        let p = self.source.params;
        let scope = &format!("/model/layers.{layer}/mlp");
        // Values between the matrices can be in the order of the last matrix at no cost.
        let order = if self.source.keep_bits {
            let name = format!("model.layers.{layer}.mlp.down_proj.weight");
            self.source
                .tensors
                .stored(&name, &[p.hidden, p.intermediate])?
                .order
        } else {
            None
        };
        let columns = order.as_ref().map(|order| {
            let upper = order.iter().map(|i| i + p.intermediate);
            let upper = upper.filter(|_| p.family.joins_projections);
            order.iter().copied().chain(upper).collect::<Vec<_>>()
        });
        let mut linear = |name: &str, outputs: usize| {
            let (scope, size) = (format!("{scope}/{name}"), [p.hidden, outputs]);
            self.linear(&scope, x, size, p.mlp_bias, columns.as_deref())
        };
        let [gate, up] = if p.family.joins_projections {
            let both = linear("gate_up_proj", 2 * p.intermediate)?;
            self.split(scope, &both, shared!("gate_up"))?
        } else {
            [
                linear("gate_proj", p.intermediate)?,
                linear("up_proj", p.intermediate)?,
            ]
        };
        let act = &format!("{scope}/act_fn");
        let gate = if p.family.gelu {
            let tanh = [("approximate", Attr::Str("tanh".to_owned()))];
            self.node("Gelu", act, &[&gate], &tanh)?
        } else {
            let sigmoid = self.node("Sigmoid", act, &[&gate], &[])?;
            self.node("Mul", act, &[&gate, &sigmoid], &[])?
        };
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        if let Some(order) = order {
            self.source.is_in_order(&gated, order);
        }
        let size = [p.intermediate, p.hidden];
        self.linear(&format!("{scope}/down_proj"), &gated, size, p.mlp_bias, None)
    }

    fn layer(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let (hidden, results) = (
            self.source.params.hidden,
            self.source.params.family.normalizes_results,
        );
        let scope = &format!("/model/layers.{layer}");
        let norm = |b: &mut Self, which: &str, x: &str| b.norm(&format!("{scope}/{which}"), x, hidden);
        let normed = norm(self, "input_layernorm", x)?;
        let mut attention = self.attention(layer, &normed, s)?;
        if results {
            attention = norm(self, "post_attention_layernorm", &attention)?;
        }
        let x = self.node("Add", scope, &[x, &attention], &[])?;
        let before_mlp = if results {
            "pre_feedforward_layernorm"
        } else {
            "post_attention_layernorm"
        };
        let normed = norm(self, before_mlp, &x)?;
        let mut mlp = self.mlp(layer, &normed)?;
        if results {
            mlp = norm(self, "post_feedforward_layernorm", &mlp)?;
        }
        self.node("Add", scope, &[&x, &mlp], &[])
    }
}

/// Names of values that layers read.
struct Shared {
    angles: Angles,
    mask: String,
    /// Angles, if different, and mask of sliding-window layers.
    window: Option<(Option<Angles>, String)>,
}

/// Names of the cosines and sines of the rotary angles, `[batch, sequence, 1, width]`.
struct Angles {
    cos: String,
    sin: String,
}

impl Shared {
    fn add(b: &mut Builder<Checkpoint<'_>>) -> Result<Self> {
        let p = b.source.params;
        let (heads, kv_heads, dim) = (signed(p.heads), signed(p.kv_heads), signed(p.head_dim));
        b.ints(shared!("axis_2"), &[2])?;
        let angles = rotary(b, "rotary_emb", &p.rope)?;
        b.ints(shared!("zero"), &[0])?;
        b.ints(shared!("one"), &[1])?;
        let (mask, window_mask) = mask(b)?;
        let window = match (&p.window, window_mask) {
            (Some(Window { rope, .. }), Some(mask)) => {
                let own = rope.as_ref();
                let own = own.map(|rope| rotary(b, "rotary_emb_local", rope));
                Some((own.transpose()?, mask))
            }
            _ => None,
        };
        b.scalar(shared!("two"), 2.0)?;
        b.scalar(shared!("eps"), p.eps)?;
        b.scalar(shared!("scale"), p.scale)?;
        if let Some(cap) = p.score_cap {
            b.scalar(shared!("score_cap"), cap)?;
        }
        b.ints(shared!("last_axis"), &[-1])?;
        let rotated = signed(p.rope.width);
        b.ints(shared!("half_head"), &[rotated / 2])?;
        if rotated < dim {
            b.ints(shared!("rotated"), &[rotated])?;
        }
        b.ints(shared!("end"), &[i64::MAX])?;
        b.ints(shared!("axis_3"), &[3])?;
        b.ints(shared!("query_heads"), &[0, 0, heads, dim])?;
        b.ints(shared!("key_heads"), &[0, 0, kv_heads, dim])?;
        b.ints(shared!("groups"), &[0, kv_heads, heads / kv_heads, -1, dim])?;
        b.ints(shared!("merged_groups"), &[0, heads, -1, dim])?;
        b.ints(shared!("merged_heads"), &[0, 0, heads * dim])?;
        if p.family.joins_projections {
            let inner = signed(p.intermediate);
            b.ints(shared!("qkv"), &[heads * dim, kv_heads * dim, kv_heads * dim])?;
            b.ints(shared!("gate_up"), &[inner, inner])?;
        }
        Ok(Self { angles, mask, window })
    }

    /// The angles and the mask of `layer`.
    fn view(&self, p: &Params, layer: usize) -> (&Angles, &str) {
        let windowed = p.window.as_ref().and_then(|w| w.layers.get(layer)) == Some(&true);
        match &self.window {
            Some((angles, mask)) if windowed => (angles.as_ref().unwrap_or(&self.angles), mask),
            _ => (&self.angles, &self.mask),
        }
    }
}

/// Computes cosines and sines of the rotary angles.
fn rotary(b: &mut Builder<Checkpoint<'_>>, module: &str, rope: &Rope) -> Result<Angles> {
    let scope = &format!("/model/{module}");
    let at = |name: &str| format!("{scope}/{name}");
    let (short, long) = rope.frequencies();
    let shape = [1, 1, short.len()];
    let mut frequencies = b.constant(
        &format!("model.{module}.inv_freq"),
        HostTensor::from_f32(&shape, &short),
    )?;
    if let Some((original, long)) = long {
        let long = b.constant(
            &format!("model.{module}.long_inv_freq"),
            HostTensor::from_f32(&shape, &long),
        )?;
        let original = b.scalar_int(&at("original"), signed(original))?;
        let one = b.scalar_int(&at("one"), 1)?;
        let shape = b.node("Shape", scope, &["attention_mask"], &[])?;
        let total = b.node("Gather", scope, &[&shape, &one], &axis(0))?;
        let is_long = b.node("Greater", scope, &[&total, &original], &[])?;
        frequencies = b.node("Where", scope, &[&is_long, &long, &frequencies], &[])?;
    }
    let float = [("to", Attr::Int(1))];
    let mut positions = b.node("Cast", scope, &["position_ids"], &float)?;
    let sequence_first = b.source.params.family.sequence_first;
    if sequence_first {
        positions = b.node("Transpose", scope, &[&positions], &perm(&[1, 0]))?;
    }
    let positions = b.node("Unsqueeze", scope, &[&positions, shared!("axis_2")], &[])?;
    let mut angles = b.node("Mul", scope, &[&positions, &frequencies], &[])?;
    if !sequence_first {
        angles = b.node("Concat", scope, &[&angles, &angles], &axis(-1))?;
    }
    let magnitude = (rope.magnitude != 1.0)
        .then(|| b.scalar(&at("magnitude"), rope.magnitude))
        .transpose()?;
    let mut part = |function: &str| {
        let mut y = b.node(function, scope, &[&angles], &[])?;
        if let Some(m) = &magnitude {
            y = b.node("Mul", &at(function), &[&y, m], &[])?;
        }
        if b.source.float != DType::F32 {
            let float = type_code(b.source.float).into();
            y = b.node("Cast", scope, &[&y], &[("to", Attr::Int(float))])?;
        }
        b.node("Unsqueeze", scope, &[&y, shared!("axis_2")], &[])
    };
    Ok(Angles {
        cos: part("Cos")?,
        sin: part("Sin")?,
    })
}

/// The mask `[batch, 1, 1, sequence, total]`: zero where a query sees a key, else the lowest
/// number. Also the mask of sliding-window layers, if the model's context exceeds the window.
fn mask(b: &mut Builder<Checkpoint<'_>>) -> Result<(String, Option<String>)> {
    let scope = "/model/mask";
    let at = |name: &str| format!("{scope}/{name}");
    let zero = b.scalar_int(&at("zero"), 0)?;
    let one = b.scalar_int(&at("one"), 1)?;
    let two = b.scalar_int(&at("two"), 2)?;
    let outer = b.ints(&at("outer_axes"), &[1, 2, 3])?;
    let visible = b.scalar(&at("visible"), 0.0)?;
    // Added to the scores of hidden keys.
    let lowest = match b.source.float {
        DType::F16 => -65504.0,
        _ => f32::MIN,
    };
    let masked = b.scalar(&at("masked"), lowest)?;
    let first = axis(0);

    let shape = b.node("Shape", scope, &["input_ids"], &[])?;
    let sequence = b.node("Gather", scope, &[&shape, &one], &first)?;
    let shape = b.node("Shape", scope, &["past_key_values.0.key"], &[])?;
    let along = if b.source.params.family.sequence_first {
        &zero
    } else {
        &two
    };
    let past = b.node("Gather", scope, &[&shape, along], &first)?;
    let total = b.node("Add", scope, &[&past, &sequence], &[])?;
    let keys = b.node("Range", scope, &[&zero, &total, &one], &[])?;
    let keys = b.node("Unsqueeze", scope, &[&keys, shared!("zero")], &[])?;
    let queries = b.node("Range", scope, &[&past, &total, &one], &[])?;
    let queries = b.node("Unsqueeze", scope, &[&queries, shared!("one")], &[])?;
    let causal = b.node("LessOrEqual", scope, &[&keys, &queries], &[])?;
    let padding = b.node("Unsqueeze", scope, &["attention_mask", &outer], &[])?;
    let padding = b.node("Cast", scope, &[&padding], &[("to", Attr::Int(9))])?;
    let seen = b.node("And", scope, &[&causal, &padding], &[])?;
    let all = b.node("Where", scope, &[&seen, &visible, &masked], &[])?;
    let Some(window) = &b.source.params.window else {
        return Ok((all, None));
    };
    let length = b.scalar_int(&at("window"), signed(window.length))?;
    let before = b.node("Sub", scope, &[&queries, &length], &[])?;
    let near = b.node("Greater", scope, &[&keys, &before], &[])?;
    let seen = b.node("And", scope, &[&seen, &near], &[])?;
    let near = b.node("Where", scope, &[&seen, &visible, &masked], &[])?;
    Ok((all, Some(near)))
}
