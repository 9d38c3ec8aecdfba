//! Builds the ONNX graph of a decoder of any [`super::Architecture`].
//!
//! Names of values and nodes are those that exporters give to Hugging Face modules.

use super::params::{Activation, Window};
use super::rope::Rope;
use super::weights::{Builder, Matrix};
use super::{Kept, Params};
use crate::onnx_int::onnx_int;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::onnx::write::{Attr, ModelWriter, NodeSpec, Size};
use transformer_lite::unstable::graph::op::OWN_DOMAIN;
use transformer_lite::unstable::tensor::{DType, HostTensor};

/// Added to the scores of hidden keys.
const MASKED: f32 = f32::MIN;
/// Opset of the graph; the first one with `Gelu`.
const OPSET: i64 = 20;
const EMBEDDING: &str = "model.embed_tokens.weight";

impl Builder<'_> {
    /// Builds the whole model and returns the writer, to be finished, and the weights that kept
    /// their bits.
    pub fn build(mut self) -> Result<(ModelWriter, Kept)> {
        let p = self.params;
        self.out.opset("", OPSET);
        self.signature()?;
        let shared = Shared::add(&mut self)?;

        let (mut x, mut head) = self.embedding()?;
        for layer in 0..p.layers {
            x = self.layer(layer, &x, &shared)?;
        }
        let x = self.norm("model.norm", "/model/norm", &x, p.hidden, &shared)?;
        if !p.tied {
            head = self.matrix("lm_head.weight", p.hidden, p.vocab, None)?;
        } else if let Matrix::Float(name) = head {
            let swap = [("perm", Attr::Ints(vec![1, 0]))];
            head = Matrix::Float(self.node("Transpose", "/lm_head/Transpose", &[&name], &swap)?);
        }
        match p.logit_cap {
            None => self.product("/lm_head/MatMul", &x, &head, "logits")?,
            Some(cap) => {
                let product = "/lm_head/MatMul_output_0";
                self.product("/lm_head/MatMul", &x, &head, product)?;
                let cap = self.scalar("/lm_head/cap", cap)?;
                let bent = self.bend("/lm_head", product, &cap)?;
                self.node_as("Mul", "/lm_head/Mul", &[&bent, &cap], &[], "logits")?;
            }
        }
        self.tensors.all_used()?;
        if !self.kept.weights.is_empty() {
            self.out.opset(OWN_DOMAIN, 1);
        }
        Ok((self.out, self.kept))
    }

    /// The rows of the tokens, and the embedding as stored: `[vocab, hidden]` for floats.
    fn embedding(&mut self) -> Result<(String, Matrix)> {
        let p = self.params;
        let path = "/model/embed_tokens/Gather";
        let shape = [p.vocab, p.hidden];
        let mut stored = self.tensors.stored(EMBEDDING, &shape)?;
        let (mut x, table) = match self.grids(EMBEDDING, &shape, &mut stored) {
            Some(grids) => {
                let packed = self.pack(EMBEDDING, grids, &stored, None)?;
                let x = format!("{path}_output_0");
                self.own_node("GatherE0M", path, "input_ids", &packed, &x)?;
                (x, Matrix::Packed(packed))
            }
            None => {
                self.copy(EMBEDDING, shape, &stored)?;
                let x = self.node("Gather", path, &[EMBEDDING, "input_ids"], &[])?;
                (x, Matrix::Float(EMBEDDING.to_owned()))
            }
        };
        if p.embedding_scale != 1.0 {
            let scale = self.scalar("/model/constants/embedding_scale", p.embedding_scale)?;
            x = self.node("Mul", "/model/embed_tokens/Mul", &[&x, &scale], &[])?;
        }
        Ok((x, table))
    }

    fn signature(&mut self) -> Result<()> {
        let p = self.params;
        let (batch, sequence, past) = ("batch_size", "sequence_length", "past_sequence_length");
        let total = format!("{past} + {sequence}");
        let ids = [batch.into(), sequence.into()];
        self.out.add_input("input_ids", DType::I64, &ids)?;
        self.out.add_input(
            "attention_mask",
            DType::I64,
            &[batch.into(), total.as_str().into()],
        )?;
        self.out.add_input("position_ids", DType::I64, &ids)?;
        self.out.add_output(
            "logits",
            DType::F32,
            &[batch.into(), sequence.into(), p.vocab.into()],
        )?;
        let cache = |length: &str| -> [Size; 4] {
            [batch.into(), p.kv_heads.into(), length.into(), p.head_dim.into()]
        };
        for layer in 0..p.layers {
            for part in ["key", "value"] {
                self.out.add_input(
                    &format!("past_key_values.{layer}.{part}"),
                    DType::F32,
                    &cache(past),
                )?;
                self.out
                    .add_output(&format!("present.{layer}.{part}"), DType::F32, &cache(&total))?;
            }
        }
        Ok(())
    }

    /// RMS normalization of rows of `width`, with a weight.
    fn norm(&mut self, target: &str, path: &str, x: &str, width: usize, s: &Shared) -> Result<String> {
        let weight = format!("{target}.weight");
        self.vector(&weight, width, self.params.norm_offset, None)?;
        let square = self.node("Pow", &format!("{path}/Pow"), &[x, &s.two], &[])?;
        let keep = [("keepdims", Attr::Int(1))];
        let mean = self.node(
            "ReduceMean",
            &format!("{path}/ReduceMean"),
            &[&square, &s.last_axis],
            &keep,
        )?;
        let sum = self.node("Add", &format!("{path}/Add"), &[&mean, &s.eps], &[])?;
        let root = self.node("Sqrt", &format!("{path}/Sqrt"), &[&sum], &[])?;
        let inverse = self.node("Reciprocal", &format!("{path}/Reciprocal"), &[&root], &[])?;
        let scaled = self.node("Mul", &format!("{path}/Mul"), &[x, &inverse], &[])?;
        self.node("Mul", &format!("{path}/Mul_1"), &[&weight, &scaled], &[])
    }

    /// `tanh(x / cap)`.
    fn bend(&mut self, path: &str, x: &str, cap: &str) -> Result<String> {
        let divided = self.node("Div", &format!("{path}/Div"), &[x, cap], &[])?;
        self.node("Tanh", &format!("{path}/Tanh"), &[&divided], &[])
    }

    /// A projection with its weight and, if the checkpoint has one, its bias.
    fn linear(&mut self, l: &Linear<'_>, layer: usize, x: &str) -> Result<String> {
        let target = format!("model.layers.{layer}.{}", l.target);
        let path = format!("/model/layers.{layer}/{}", l.target.replace('.', "/"));
        let mut weight = self.matrix(&format!("{target}.weight"), l.inputs, l.outputs, l.columns)?;
        if let (Matrix::Packed(packed), true) = (&mut weight, l.in_order) {
            packed.order = None;
        }
        let product = format!("{path}/MatMul_output_0");
        self.product(&format!("{path}/MatMul"), x, &weight, &product)?;
        if !l.bias {
            return Ok(product);
        }
        let bias = format!("{target}.bias");
        self.vector(&bias, l.outputs, 0.0, l.columns)?;
        self.node("Add", &format!("{path}/Add"), &[&product, &bias], &[])
    }

    /// Splits `x` along its last axis into the sizes in the value `sizes`.
    fn split<const N: usize>(&mut self, path: &str, x: &str, sizes: &str) -> Result<[String; N]> {
        let parts: [String; N] = std::array::from_fn(|i| format!("{path}_output_{i}"));
        self.out.add_node(NodeSpec {
            domain: "",
            op: "Split",
            name: path,
            inputs: &[x, sizes],
            outputs: &parts.each_ref().map(String::as_str),
            attributes: &[("axis", Attr::Int(-1))],
        })?;
        Ok(parts)
    }

    /// Rotates `x` of shape `[batch, sequence, heads, head_dim]` by the angles of its positions.
    fn rotate(&mut self, path: &str, x: &str, angles: &Angles, s: &Shared) -> Result<String> {
        let last = [("axis", Attr::Int(-1))];
        let (mut part, mut rest) = (x.to_owned(), None);
        if let Some(width) = &s.rotated {
            let bounds = [x, &s.zero, width, &s.axis_3, &s.one];
            part = self.node("Slice", &format!("{path}/Slice_2"), &bounds, &[])?;
            let bounds = [x, width, &s.end, &s.axis_3, &s.one];
            rest = Some(self.node("Slice", &format!("{path}/Slice_3"), &bounds, &[])?);
        }
        let x: &str = &part;
        let plain = self.node("Mul", &format!("{path}/Mul"), &[x, &angles.cos], &[])?;
        let bounds = [x, &s.half, &s.end, &s.axis_3, &s.one];
        let upper = self.node("Slice", &format!("{path}/Slice_1"), &bounds, &[])?;
        let negated = self.node("Neg", &format!("{path}/Neg"), &[&upper], &[])?;
        let bounds = [x, &s.zero, &s.half, &s.axis_3, &s.one];
        let lower = self.node("Slice", &format!("{path}/Slice"), &bounds, &[])?;
        let half_turn = self.node("Concat", &format!("{path}/Concat"), &[&negated, &lower], &last)?;
        let turned = self.node("Mul", &format!("{path}/Mul_1"), &[&half_turn, &angles.sin], &[])?;
        let turned = self.node("Add", &format!("{path}/Add"), &[&plain, &turned], &[])?;
        match rest {
            None => Ok(turned),
            Some(rest) => self.node("Concat", &format!("{path}/Concat_1"), &[&turned, &rest], &last),
        }
    }

    /// Appends new keys or values to the cache and adds a query-group axis.
    fn cache(&mut self, path: &str, layer: usize, part: &str, new: &str, s: &Shared) -> Result<String> {
        let past = format!("past_key_values.{layer}.{part}");
        let present = format!("present.{layer}.{part}");
        let axis = [("axis", Attr::Int(2))];
        self.node_as(
            "Concat",
            &format!("{path}/{part}/Concat"),
            &[&past, new],
            &axis,
            &present,
        )?;
        self.node(
            "Unsqueeze",
            &format!("{path}/{part}/Unsqueeze"),
            &[&present, &s.axis_2],
            &[],
        )
    }

    /// Queries, keys and values, each `[batch, sequence, width]`.
    fn projections(&mut self, layer: usize, x: &str, s: &Shared) -> Result<[String; 3]> {
        let p = self.params;
        let projection = |target, outputs| Linear {
            target,
            inputs: p.hidden,
            outputs,
            bias: p.qkv_bias,
            columns: None,
            in_order: false,
        };
        let (q, kv) = (p.q_width(), p.kv_width());
        match &s.joint {
            Some(joint) => {
                let all = self.linear(&projection("self_attn.qkv_proj", q + 2 * kv), layer, x)?;
                self.split(
                    &format!("/model/layers.{layer}/self_attn/Split"),
                    &all,
                    &joint.qkv,
                )
            }
            None => Ok([
                self.linear(&projection("self_attn.q_proj", q), layer, x)?,
                self.linear(&projection("self_attn.k_proj", kv), layer, x)?,
                self.linear(&projection("self_attn.v_proj", kv), layer, x)?,
            ]),
        }
    }

    fn attention(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.params;
        let (name, path) = (
            format!("model.layers.{layer}.self_attn"),
            format!("/model/layers.{layer}/self_attn"),
        );
        let at = |name: &str| format!("{path}/{name}");
        let swap = [("perm", Attr::Ints(vec![0, 2, 1, 3]))];
        let view = s.view(p, layer);

        let [q, k, v] = self.projections(layer, x, s)?;
        let mut q = self.node("Reshape", &at("q/Reshape"), &[&q, &s.q_heads], &[])?;
        let mut k = self.node("Reshape", &at("k/Reshape"), &[&k, &s.kv_heads], &[])?;
        let v = self.node("Reshape", &at("v/Reshape"), &[&v, &s.kv_heads], &[])?;
        if p.architecture.normalizes_heads() {
            q = self.norm(&format!("{name}.q_norm"), &at("q_norm"), &q, p.head_dim, s)?;
            k = self.norm(&format!("{name}.k_norm"), &at("k_norm"), &k, p.head_dim, s)?;
        }
        let q = self.rotate(&at("q/rotary"), &q, view.angles, s)?;
        let k = self.rotate(&at("k/rotary"), &k, view.angles, s)?;
        let q = self.node("Transpose", &at("q/Transpose"), &[&q], &swap)?;
        let k = self.node("Transpose", &at("k/Transpose"), &[&k], &swap)?;
        let v = self.node("Transpose", &at("v/Transpose"), &[&v], &swap)?;
        let k = self.cache(&path, layer, "key", &k, s)?;
        let v = self.cache(&path, layer, "value", &v, s)?;

        let flip = [("perm", Attr::Ints(vec![0, 1, 2, 4, 3]))];
        let k = self.node("Transpose", &at("key/Transpose"), &[&k], &flip)?;
        let q = self.node("Reshape", &at("q/Reshape_1"), &[&q, &s.groups], &[])?;
        let scores = self.node("MatMul", &at("MatMul"), &[&q, &k], &[])?;
        let mut scores = self.node("Mul", &at("Mul"), &[&scores, &s.scale], &[])?;
        if let Some(cap) = &s.score_cap {
            scores = self.bend(&path, &scores, cap)?;
            scores = self.node("Mul", &at("Mul_1"), &[&scores, cap], &[])?;
        }
        let scores = self.node("Add", &at("Add"), &[&scores, view.mask], &[])?;
        let weights = self.node("Softmax", &at("Softmax"), &[&scores], &[("axis", Attr::Int(-1))])?;
        let mixed = self.node("MatMul", &at("MatMul_1"), &[&weights, &v], &[])?;
        let mixed = self.node("Reshape", &at("Reshape"), &[&mixed, &s.merged_groups], &[])?;
        let mixed = self.node("Transpose", &at("Transpose"), &[&mixed], &swap)?;
        let mixed = self.node("Reshape", &at("Reshape_1"), &[&mixed, &s.merged_heads], &[])?;
        let output = Linear {
            target: "self_attn.o_proj",
            inputs: p.q_width(),
            outputs: p.hidden,
            bias: p.output_bias,
            columns: None,
            in_order: false,
        };
        self.linear(&output, layer, &mixed)
    }

    fn mlp(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.params;
        let path = format!("/model/layers.{layer}/mlp");
        // Values between the matrices can be in the order of the last matrix at no cost.
        let mut order = if self.keep_bits {
            let name = format!("model.layers.{layer}.mlp.down_proj.weight");
            self.tensors.stored(&name, &[p.hidden, p.intermediate])?.order
        } else {
            None
        };
        if let (Some(order), Some(_)) = (&mut order, &s.joint) {
            let upper: Vec<usize> = order.iter().map(|i| i + p.intermediate).collect();
            order.extend(upper);
        }
        let matrix = |target, outputs| Linear {
            target,
            inputs: p.hidden,
            outputs,
            bias: p.mlp_bias,
            columns: order.as_deref(),
            in_order: false,
        };
        let [gate, up] = match &s.joint {
            Some(joint) => {
                let both = self.linear(&matrix("mlp.gate_up_proj", 2 * p.intermediate), layer, x)?;
                self.split(&format!("{path}/Split"), &both, &joint.gate_up)?
            }
            None => [
                self.linear(&matrix("mlp.gate_proj", p.intermediate), layer, x)?,
                self.linear(&matrix("mlp.up_proj", p.intermediate), layer, x)?,
            ],
        };
        let act = |what: &str| format!("{path}/act_fn/{what}");
        let gate = match p.architecture.activation() {
            Activation::Silu => {
                let sigmoid = self.node("Sigmoid", &act("Sigmoid"), &[&gate], &[])?;
                self.node("Mul", &act("Mul"), &[&gate, &sigmoid], &[])?
            }
            Activation::GeluTanh => {
                let tanh = [("approximate", Attr::Str("tanh".to_owned()))];
                self.node("Gelu", &act("Gelu"), &[&gate], &tanh)?
            }
        };
        let gated = self.node("Mul", &format!("{path}/Mul"), &[&gate, &up], &[])?;
        let down = Linear {
            target: "mlp.down_proj",
            inputs: p.intermediate,
            outputs: p.hidden,
            bias: p.mlp_bias,
            columns: None,
            in_order: true,
        };
        self.linear(&down, layer, &gated)
    }

    fn layer(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let (hidden, results) = (self.params.hidden, self.params.architecture.normalizes_results());
        let norm = |b: &mut Self, which: &str, x: &str| {
            let (name, path) = (
                format!("model.layers.{layer}.{which}"),
                format!("/model/layers.{layer}/{which}"),
            );
            b.norm(&name, &path, x, hidden, s)
        };
        let add = |b: &mut Self, which: &str, x: &str, y: &str| {
            b.node("Add", &format!("/model/layers.{layer}/{which}"), &[x, y], &[])
        };
        let normed = norm(self, "input_layernorm", x)?;
        let mut attention = self.attention(layer, &normed, s)?;
        if results {
            attention = norm(self, "post_attention_layernorm", &attention)?;
        }
        let x = add(self, "Add", x, &attention)?;
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
        add(self, "Add_1", &x, &mlp)
    }
}

/// A projection of a layer.
struct Linear<'a> {
    /// Name after `model.layers.{layer}.`.
    target: &'a str,
    inputs: usize,
    outputs: usize,
    bias: bool,
    /// Requested order of its columns.
    columns: Option<&'a [usize]>,
    /// True if its input is already in the order that it needs.
    in_order: bool,
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
    fn add(b: &mut Builder<'_>) -> Result<Self> {
        let p = b.params;
        let (heads, kv_heads, dim) = (onnx_int(p.heads)?, onnx_int(p.kv_heads)?, onnx_int(p.head_dim)?);
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
        let rotated = onnx_int(p.rope.width)?;
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
                let (q, kv, inner) = (
                    onnx_int(p.q_width())?,
                    onnx_int(p.kv_width())?,
                    onnx_int(p.intermediate)?,
                );
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
fn rotary(b: &mut Builder<'_>, module: &str, rope: &Rope, axis_2: &str) -> Result<Angles> {
    let at = |name: &str| format!("/model/{module}/{name}");
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
        let original = b.scalar_int(&at("original"), onnx_int(original)?)?;
        let one = b.scalar_int(&at("one"), 1)?;
        let shape = b.node("Shape", &at("Shape"), &["attention_mask"], &[])?;
        let total = b.node(
            "Gather",
            &at("Gather"),
            &[&shape, &one],
            &[("axis", Attr::Int(0))],
        )?;
        let is_long = b.node("Greater", &at("Greater"), &[&total, &original], &[])?;
        frequencies = b.node("Where", &at("Where"), &[&is_long, &long, &frequencies], &[])?;
    }
    let float = [("to", Attr::Int(1))];
    let positions = b.node("Cast", &at("Cast"), &["position_ids"], &float)?;
    let positions = b.node("Unsqueeze", &at("Unsqueeze"), &[&positions, axis_2], &[])?;
    let angles = b.node("Mul", &at("Mul"), &[&positions, &frequencies], &[])?;
    let last = [("axis", Attr::Int(-1))];
    let angles = b.node("Concat", &at("Concat"), &[&angles, &angles], &last)?;
    let magnitude = (rope.magnitude != 1.0)
        .then(|| b.scalar(&at("magnitude"), rope.magnitude))
        .transpose()?;
    let mut part = |function: &str, unsqueeze: &str| {
        let mut y = b.node(function, &at(function), &[&angles], &[])?;
        if let Some(m) = &magnitude {
            y = b.node("Mul", &at(&format!("{function}/Mul")), &[&y, m], &[])?;
        }
        b.node("Unsqueeze", &at(unsqueeze), &[&y, axis_2], &[])
    };
    Ok(Angles {
        cos: part("Cos", "Unsqueeze_1")?,
        sin: part("Sin", "Unsqueeze_2")?,
    })
}

/// The mask `[batch, 1, 1, sequence, total]`: zero where a query sees a key, else [`MASKED`]. Also
/// the mask of sliding-window layers, if the model's context exceeds the window.
fn mask(b: &mut Builder<'_>, axis_0: &str, axis_1: &str) -> Result<(String, Option<String>)> {
    let path = "/model/mask";
    let at = |name: &str| format!("{path}/{name}");
    let zero = b.scalar_int(&at("zero"), 0)?;
    let one = b.scalar_int(&at("one"), 1)?;
    let two = b.scalar_int(&at("two"), 2)?;
    let outer = b.ints(&at("outer_axes"), &[1, 2, 3])?;
    let visible = b.scalar(&at("visible"), 0.0)?;
    let masked = b.scalar(&at("masked"), MASKED)?;
    let first = [("axis", Attr::Int(0))];

    let shape = b.node("Shape", &at("Shape"), &["input_ids"], &[])?;
    let sequence = b.node("Gather", &at("Gather"), &[&shape, &one], &first)?;
    let shape = b.node("Shape", &at("Shape_1"), &["past_key_values.0.key"], &[])?;
    let past = b.node("Gather", &at("Gather_1"), &[&shape, &two], &first)?;
    let total = b.node("Add", &at("Add"), &[&past, &sequence], &[])?;
    let keys = b.node("Range", &at("Range"), &[&zero, &total, &one], &[])?;
    let keys = b.node("Unsqueeze", &at("Unsqueeze"), &[&keys, axis_0], &[])?;
    let queries = b.node("Range", &at("Range_1"), &[&past, &total, &one], &[])?;
    let queries = b.node("Unsqueeze", &at("Unsqueeze_1"), &[&queries, axis_1], &[])?;
    let causal = b.node("LessOrEqual", &at("LessOrEqual"), &[&keys, &queries], &[])?;
    let padding = b.node("Unsqueeze", &at("Unsqueeze_2"), &["attention_mask", &outer], &[])?;
    let padding = b.node("Cast", &at("Cast"), &[&padding], &[("to", Attr::Int(9))])?;
    let seen = b.node("And", &at("And"), &[&causal, &padding], &[])?;
    let all = b.node("Where", &at("Where"), &[&seen, &visible, &masked], &[])?;
    let Some(window) = &b.params.window else {
        return Ok((all, None));
    };
    let length = b.scalar_int(&at("window"), onnx_int(window.length)?)?;
    let before = b.node("Sub", &at("Sub"), &[&queries, &length], &[])?;
    let near = b.node("Greater", &at("Greater"), &[&keys, &before], &[])?;
    let seen = b.node("And", &at("And_1"), &[&seen, &near], &[])?;
    let near = b.node("Where", &at("Where_1"), &[&seen, &visible, &masked], &[])?;
    Ok((all, Some(near)))
}
