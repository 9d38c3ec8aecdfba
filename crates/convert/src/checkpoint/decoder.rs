//! Builds the ONNX graph of a decoder of any [`super::Architecture`].
//!
//! Names of values and nodes are those that exporters give to Hugging Face modules.

use super::params::{Activation, Window};
use super::rope::Rope;
use super::weights::{Checkpoint, Matrix};
use super::{Kept, Params};
use crate::builder::{BATCH, Builder, axis, cache_names, module, perm};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::num::signed;
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Added to the scores of hidden keys.
const MASKED: f32 = f32::MIN;
/// Opset of the graph; the first one with `Gelu`.
const OPSET: i64 = 20;
const EMBEDDING: &str = "model.embed_tokens.weight";

impl Builder<Checkpoint<'_>> {
    /// Builds the whole model and returns the writer, to be finished, and the weights that kept
    /// their bits.
    pub fn build(mut self) -> Result<(ModelWriter, Kept)> {
        let p = self.source.params;
        self.out.opset("", OPSET);
        self.signature(DType::F32, p.vocab, p.layers, |length| {
            [BATCH.into(), p.kv_heads.into(), length.into(), p.head_dim.into()]
        })?;
        let shared = Shared::add(&mut self)?;

        let (mut x, mut head) = self.embedding()?;
        for layer in 0..p.layers {
            x = self.layer(layer, &x, &shared)?;
        }
        let x = self.norm("/model/norm", &x, p.hidden, &shared)?;
        let scope = "/lm_head";
        if !p.tied {
            head = self.matrix("lm_head.weight", p.hidden, p.vocab, None)?;
        } else if let Matrix::Float(name) = head {
            head = Matrix::Float(self.node("Transpose", scope, &[&name], &perm(&[1, 0]))?);
        }
        match p.logit_cap {
            None => drop(self.product(scope, &x, &head, Some("logits"))?),
            Some(cap) => {
                let product = self.product(scope, &x, &head, None)?;
                let cap = self.scalar("/lm_head/cap", cap)?;
                let bent = self.bend(scope, &product, &cap)?;
                self.node_as("Mul", scope, &[&bent, &cap], &[], "logits")?;
            }
        }
        self.source.tensors.all_used()?;
        if !self.source.kept.weights.is_empty() {
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
        if p.embedding_scale != 1.0 {
            let scale = self.scalar("/model/constants/embedding_scale", p.embedding_scale)?;
            x = self.node("Mul", scope, &[&x, &scale], &[])?;
        }
        Ok((x, table))
    }

    /// RMS normalization of rows of `width`, with a weight.
    fn norm(&mut self, scope: &str, x: &str, width: usize, s: &Shared) -> Result<String> {
        let weight = format!("{}.weight", module(scope));
        self.vector(&weight, width, self.source.params.norm_offset, None)?;
        let square = self.node("Pow", scope, &[x, &s.two], &[])?;
        let keep = [("keepdims", Attr::Int(1))];
        let mean = self.node("ReduceMean", scope, &[&square, &s.last_axis], &keep)?;
        let sum = self.node("Add", scope, &[&mean, &s.eps], &[])?;
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

    /// A projection with its weight and, if the checkpoint has one, its bias.
    fn linear(&mut self, l: &Linear<'_>, layer: usize, x: &str) -> Result<String> {
        let scope = format!("/model/layers.{layer}/{}", l.scope);
        let name = module(&scope);
        let mut weight = self.matrix(&format!("{name}.weight"), l.inputs, l.outputs, l.columns)?;
        if let (Matrix::Packed(packed), true) = (&mut weight, l.in_order) {
            packed.order = None;
        }
        let product = self.product(&scope, x, &weight, None)?;
        if !l.bias {
            return Ok(product);
        }
        let bias = format!("{name}.bias");
        self.vector(&bias, l.outputs, 0.0, l.columns)?;
        self.node("Add", &scope, &[&product, &bias], &[])
    }

    /// Rotates `x` of shape `[batch, sequence, heads, head_dim]` by the angles of its positions.
    fn rotate(&mut self, scope: &str, x: &str, angles: &Angles, s: &Shared) -> Result<String> {
        let slice = |b: &mut Self, name: &str, x: &str, from: &str, to: &str| {
            b.named_node(
                "Slice",
                &format!("{scope}/{name}"),
                &[x, from, to, &s.axis_3, &s.one],
                &[],
            )
        };
        let (mut part, mut rest) = (x.to_owned(), None);
        if let Some(width) = &s.rotated {
            part = slice(self, "Slice_2", x, &s.zero, width)?;
            rest = Some(slice(self, "Slice_3", x, width, &s.end)?);
        }
        let plain = self.node("Mul", scope, &[&part, &angles.cos], &[])?;
        let upper = slice(self, "Slice_1", &part, &s.half, &s.end)?;
        let negated = self.node("Neg", scope, &[&upper], &[])?;
        let lower = slice(self, "Slice", &part, &s.zero, &s.half)?;
        let half_turn = self.node("Concat", scope, &[&negated, &lower], &axis(-1))?;
        let turned = self.node("Mul", scope, &[&half_turn, &angles.sin], &[])?;
        let turned = self.node("Add", scope, &[&plain, &turned], &[])?;
        match rest {
            None => Ok(turned),
            Some(rest) => self.node("Concat", scope, &[&turned, &rest], &axis(-1)),
        }
    }

    /// Appends new keys or values to the cache and adds a query-group axis.
    fn cache(&mut self, scope: &str, layer: usize, part: &str, new: &str, s: &Shared) -> Result<String> {
        let [past, present] = cache_names(layer, part);
        let scope = format!("{scope}/{part}");
        self.node_as("Concat", &scope, &[&past, new], &axis(2), &present)?;
        self.node("Unsqueeze", &scope, &[&present, &s.axis_2], &[])
    }

    /// Queries, keys and values, each `[batch, sequence, width]`.
    fn projections(&mut self, layer: usize, x: &str, s: &Shared) -> Result<[String; 3]> {
        let p = self.source.params;
        let mut linear = |scope: &str, outputs: usize| {
            let projection = Linear::new(scope, p.hidden, outputs, p.qkv_bias);
            self.linear(&projection, layer, x)
        };
        let (q, kv) = (p.q_width(), p.kv_width());
        match &s.joint {
            Some(joint) => {
                let all = linear("self_attn/qkv_proj", q + 2 * kv)?;
                self.split(&format!("/model/layers.{layer}/self_attn"), &all, &joint.qkv)
            }
            None => Ok([
                linear("self_attn/q_proj", q)?,
                linear("self_attn/k_proj", kv)?,
                linear("self_attn/v_proj", kv)?,
            ]),
        }
    }

    fn attention(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.source.params;
        let scope = &format!("/model/layers.{layer}/self_attn");
        let at = |name: &str| format!("{scope}/{name}");
        let swap = perm(&[0, 2, 1, 3]);
        let view = s.view(p, layer);

        let [q, k, v] = self.projections(layer, x, s)?;
        let mut q = self.node("Reshape", &at("q"), &[&q, &s.q_heads], &[])?;
        let mut k = self.node("Reshape", &at("k"), &[&k, &s.kv_heads], &[])?;
        let v = self.node("Reshape", &at("v"), &[&v, &s.kv_heads], &[])?;
        if p.architecture.normalizes_heads() {
            q = self.norm(&at("q_norm"), &q, p.head_dim, s)?;
            k = self.norm(&at("k_norm"), &k, p.head_dim, s)?;
        }
        let q = self.rotate(&at("q/rotary"), &q, view.angles, s)?;
        let k = self.rotate(&at("k/rotary"), &k, view.angles, s)?;
        let q = self.node("Transpose", &at("q"), &[&q], &swap)?;
        let k = self.node("Transpose", &at("k"), &[&k], &swap)?;
        let v = self.node("Transpose", &at("v"), &[&v], &swap)?;
        let k = self.cache(scope, layer, "key", &k, s)?;
        let v = self.cache(scope, layer, "value", &v, s)?;

        let flip = perm(&[0, 1, 2, 4, 3]);
        let k = self.node("Transpose", &at("key"), &[&k], &flip)?;
        let q = self.node("Reshape", &at("q"), &[&q, &s.groups], &[])?;
        let scores = self.node("MatMul", scope, &[&q, &k], &[])?;
        let mut scores = self.node("Mul", scope, &[&scores, &s.scale], &[])?;
        if let Some(cap) = &s.score_cap {
            scores = self.bend(scope, &scores, cap)?;
            scores = self.node("Mul", scope, &[&scores, cap], &[])?;
        }
        let scores = self.node("Add", scope, &[&scores, view.mask], &[])?;
        let weights = self.node("Softmax", scope, &[&scores], &axis(-1))?;
        let mixed = self.node("MatMul", scope, &[&weights, &v], &[])?;
        let mixed = self.node("Reshape", scope, &[&mixed, &s.merged_groups], &[])?;
        let mixed = self.node("Transpose", scope, &[&mixed], &swap)?;
        let mixed = self.node("Reshape", scope, &[&mixed, &s.merged_heads], &[])?;
        let output = Linear::new("self_attn/o_proj", p.q_width(), p.hidden, p.output_bias);
        self.linear(&output, layer, &mixed)
    }

    fn mlp(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.source.params;
        let scope = &format!("/model/layers.{layer}/mlp");
        // Values between the matrices can be in the order of the last matrix at no cost.
        let mut order = if self.source.keep_bits {
            let name = format!("model.layers.{layer}.mlp.down_proj.weight");
            self.source
                .tensors
                .stored(&name, &[p.hidden, p.intermediate])?
                .order
        } else {
            None
        };
        if let (Some(order), Some(_)) = (&mut order, &s.joint) {
            let upper: Vec<usize> = order.iter().map(|i| i + p.intermediate).collect();
            order.extend(upper);
        }
        let mut linear = |scope: &str, outputs: usize| {
            let matrix = Linear {
                columns: order.as_deref(),
                ..Linear::new(scope, p.hidden, outputs, p.mlp_bias)
            };
            self.linear(&matrix, layer, x)
        };
        let [gate, up] = match &s.joint {
            Some(joint) => {
                let both = linear("mlp/gate_up_proj", 2 * p.intermediate)?;
                self.split(scope, &both, &joint.gate_up)?
            }
            None => [
                linear("mlp/gate_proj", p.intermediate)?,
                linear("mlp/up_proj", p.intermediate)?,
            ],
        };
        let act = &format!("{scope}/act_fn");
        let gate = match p.architecture.activation() {
            Activation::Silu => {
                let sigmoid = self.node("Sigmoid", act, &[&gate], &[])?;
                self.node("Mul", act, &[&gate, &sigmoid], &[])?
            }
            Activation::GeluTanh => {
                let tanh = [("approximate", Attr::Str("tanh".to_owned()))];
                self.node("Gelu", act, &[&gate], &tanh)?
            }
        };
        let gated = self.node("Mul", scope, &[&gate, &up], &[])?;
        let down = Linear {
            in_order: true,
            ..Linear::new("mlp/down_proj", p.intermediate, p.hidden, p.mlp_bias)
        };
        self.linear(&down, layer, &gated)
    }

    fn layer(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let (hidden, results) = (
            self.source.params.hidden,
            self.source.params.architecture.normalizes_results(),
        );
        let scope = &format!("/model/layers.{layer}");
        let norm = |b: &mut Self, which: &str, x: &str| b.norm(&format!("{scope}/{which}"), x, hidden, s);
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
        let mut mlp = self.mlp(layer, &normed, s)?;
        if results {
            mlp = norm(self, "post_feedforward_layernorm", &mlp)?;
        }
        self.node("Add", scope, &[&x, &mlp], &[])
    }
}

/// A projection of a layer.
struct Linear<'a> {
    /// Scope in the layer.
    scope: &'a str,
    inputs: usize,
    outputs: usize,
    bias: bool,
    /// Requested order of its columns.
    columns: Option<&'a [usize]>,
    /// True if its input is already in the order that it needs.
    in_order: bool,
}

impl<'a> Linear<'a> {
    fn new(scope: &'a str, inputs: usize, outputs: usize, bias: bool) -> Self {
        Self {
            scope,
            inputs,
            outputs,
            bias,
            columns: None,
            in_order: false,
        }
    }
}

/// Names of values that all layers read.
struct Shared {
    two: String,
    eps: String,
    scale: String,
    score_cap: Option<String>,
    last_axis: String,
    zero: String,
    one: String,
    /// Half the number of rotated elements of a head.
    half: String,
    /// The number of rotated elements, if it is not the whole head.
    rotated: Option<String>,
    end: String,
    axis_2: String,
    axis_3: String,
    q_heads: String,
    kv_heads: String,
    groups: String,
    merged_groups: String,
    merged_heads: String,
    joint: Option<Joint>,
    angles: Angles,
    mask: String,
    /// Angles, if different, and mask of sliding-window layers.
    window: Option<(Option<Angles>, String)>,
}

/// Names of the part sizes of fused projections.
struct Joint {
    qkv: String,
    gate_up: String,
}

/// Names of the cosines and sines of the rotary angles, `[batch, sequence, 1, width]`.
struct Angles {
    cos: String,
    sin: String,
}

/// Angles, mask and scale of a layer.
struct View<'a> {
    angles: &'a Angles,
    mask: &'a str,
}

impl Shared {
    fn add(b: &mut Builder<Checkpoint<'_>>) -> Result<Self> {
        let p = b.source.params;
        let (heads, kv_heads, dim) = (signed(p.heads), signed(p.kv_heads), signed(p.head_dim));
        let axis_2 = b.ints("/model/constants/axis_2", &[2])?;
        let angles = rotary(b, "rotary_emb", &p.rope, &axis_2)?;
        let zero = b.ints("/model/constants/zero", &[0])?;
        let one = b.ints("/model/constants/one", &[1])?;
        let (mask, window_mask) = mask(b, &zero, &one)?;
        let window = match (&p.window, window_mask) {
            (Some(Window { rope, .. }), Some(mask)) => {
                let own = rope.as_ref();
                let own = own.map(|rope| rotary(b, "rotary_emb_local", rope, &axis_2));
                let own = own.transpose()?;
                Some((own, mask))
            }
            _ => None,
        };
        let rotated = signed(p.rope.width);
        Ok(Self {
            two: b.scalar("/model/constants/two", 2.0)?,
            eps: b.scalar("/model/constants/eps", p.eps)?,
            scale: b.scalar("/model/constants/scale", p.scale)?,
            score_cap: p
                .score_cap
                .map(|cap| b.scalar("/model/constants/score_cap", cap))
                .transpose()?,
            last_axis: b.ints("/model/constants/last_axis", &[-1])?,
            zero,
            one,
            half: b.ints("/model/constants/half_head", &[rotated / 2])?,
            rotated: (rotated < dim)
                .then(|| b.ints("/model/constants/rotated", &[rotated]))
                .transpose()?,
            end: b.ints("/model/constants/end", &[i64::MAX])?,
            axis_2,
            axis_3: b.ints("/model/constants/axis_3", &[3])?,
            q_heads: b.ints("/model/constants/query_heads", &[0, 0, heads, dim])?,
            kv_heads: b.ints("/model/constants/key_heads", &[0, 0, kv_heads, dim])?,
            groups: b.ints(
                "/model/constants/groups",
                &[0, kv_heads, heads / kv_heads, -1, dim],
            )?,
            merged_groups: b.ints("/model/constants/merged_groups", &[0, heads, -1, dim])?,
            merged_heads: b.ints("/model/constants/merged_heads", &[0, 0, heads * dim])?,
            joint: if p.architecture.joins_projections() {
                let (q, kv, inner) = (signed(p.q_width()), signed(p.kv_width()), signed(p.intermediate));
                Some(Joint {
                    qkv: b.ints("/model/constants/qkv", &[q, kv, kv])?,
                    gate_up: b.ints("/model/constants/gate_up", &[inner, inner])?,
                })
            } else {
                None
            },
            angles,
            mask,
            window,
        })
    }

    /// The view of `layer`.
    fn view(&self, p: &Params, layer: usize) -> View<'_> {
        let windowed = p.window.as_ref().and_then(|w| w.layers.get(layer)) == Some(&true);
        match &self.window {
            Some((angles, mask)) if windowed => View {
                angles: angles.as_ref().unwrap_or(&self.angles),
                mask,
            },
            _ => View {
                angles: &self.angles,
                mask: &self.mask,
            },
        }
    }
}

/// Computes cosines and sines of the rotary angles.
fn rotary(b: &mut Builder<Checkpoint<'_>>, module: &str, rope: &Rope, axis_2: &str) -> Result<Angles> {
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
    let positions = b.node("Cast", scope, &["position_ids"], &float)?;
    let positions = b.node("Unsqueeze", scope, &[&positions, axis_2], &[])?;
    let angles = b.node("Mul", scope, &[&positions, &frequencies], &[])?;
    let last = axis(-1);
    let angles = b.node("Concat", scope, &[&angles, &angles], &last)?;
    let magnitude = (rope.magnitude != 1.0)
        .then(|| b.scalar(&at("magnitude"), rope.magnitude))
        .transpose()?;
    let mut part = |function: &str| {
        let mut y = b.node(function, scope, &[&angles], &[])?;
        if let Some(m) = &magnitude {
            y = b.node("Mul", &at(function), &[&y, m], &[])?;
        }
        b.node("Unsqueeze", scope, &[&y, axis_2], &[])
    };
    Ok(Angles {
        cos: part("Cos")?,
        sin: part("Sin")?,
    })
}

/// The mask `[batch, 1, 1, sequence, total]`: zero where a query sees a key, else [`MASKED`]. Also
/// the mask of sliding-window layers, if the model's context exceeds the window.
fn mask(b: &mut Builder<Checkpoint<'_>>, axis_0: &str, axis_1: &str) -> Result<(String, Option<String>)> {
    let scope = "/model/mask";
    let at = |name: &str| format!("{scope}/{name}");
    let zero = b.scalar_int(&at("zero"), 0)?;
    let one = b.scalar_int(&at("one"), 1)?;
    let two = b.scalar_int(&at("two"), 2)?;
    let outer = b.ints(&at("outer_axes"), &[1, 2, 3])?;
    let visible = b.scalar(&at("visible"), 0.0)?;
    let masked = b.scalar(&at("masked"), MASKED)?;
    let first = axis(0);

    let shape = b.node("Shape", scope, &["input_ids"], &[])?;
    let sequence = b.node("Gather", scope, &[&shape, &one], &first)?;
    let shape = b.node("Shape", scope, &["past_key_values.0.key"], &[])?;
    let past = b.node("Gather", scope, &[&shape, &two], &first)?;
    let total = b.node("Add", scope, &[&past, &sequence], &[])?;
    let keys = b.node("Range", scope, &[&zero, &total, &one], &[])?;
    let keys = b.node("Unsqueeze", scope, &[&keys, axis_0], &[])?;
    let queries = b.node("Range", scope, &[&past, &total, &one], &[])?;
    let queries = b.node("Unsqueeze", scope, &[&queries, axis_1], &[])?;
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
