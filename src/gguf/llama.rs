//! The architectures `llama` and `qwen2` as ONNX graphs.

use super::read::{Gguf, TensorInfo};
use crate::error::{Error, Result, Stage};
use crate::graph::onnx::write::{Attr, ExternalData, ModelWriter, NodeSpec, Size};
use crate::tensor::{DType, HostTensor};
use std::collections::HashSet;

/// Architectures of [`Params::read`].
pub const ARCHITECTURES: [&str; 2] = ["llama", "qwen2"];

/// Added to the scores of keys that a query must not see.
const MASKED: f32 = f32::MIN;
/// Operator set of the graph.
const OPSET: i64 = 18;
/// Elements that are decoded at once when a tensor is copied in its own order.
const CHUNK: usize = 1 << 20;
/// Rows of a transposed matrix that are gathered at once.
const STRIPE: usize = 64;
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Keys that change the computation in ways that this graph does not have.
const FOREIGN_KEYS: [&str; 10] = [
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "use_parallel_residual",
];

/// Sizes and numbers of a model, from its metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// One of [`ARCHITECTURES`].
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between the matrices of the MLP.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// All rotary frequencies are divided by this.
    pub rope_factor: f32,
    /// Added to the mean square in normalisations.
    pub eps: f32,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Longest sequence that the model was made for.
    pub context: usize,
    /// The embedding is the output matrix too.
    pub tied: bool,
    /// The query, key and value projections have biases.
    pub qkv_bias: bool,
    /// The output projection of attention has a bias.
    pub output_bias: bool,
    /// The matrices of the MLP have biases.
    pub mlp_bias: bool,
}

impl Params {
    /// Reads and checks the metadata. An error names the key, what was expected and what was found.
    pub fn read(g: &Gguf) -> Result<Self> {
        let architecture = g.required("general.architecture", g.opt_str("general.architecture")?)?;
        if !ARCHITECTURES.contains(&architecture) {
            return Err(g.bad(format!(
                "architecture \"{architecture}\" cannot be converted; supported are {}",
                ARCHITECTURES.join(", ")
            )));
        }
        let key = |name: &str| format!("{architecture}.{name}");
        let size = |name: &str| {
            let key = key(name);
            match g.opt_usize(&key)? {
                Some(0) => Err(g.bad(format!("metadata \"{key}\": expected a positive number, found 0"))),
                v => Ok(v),
            }
        };
        let need = |name: &str| g.required(&key(name), size(name)?);
        for name in FOREIGN_KEYS {
            let key = key(name);
            let neutral = match g.get(&key) {
                None => true,
                Some(v) => v.as_u64() == Some(0) || v.as_f32() == Some(0.0) || v.as_bool() == Some(false),
            };
            if !neutral {
                return Err(g.bad(format!(
                    "metadata \"{key}\" asks for a computation that is not supported"
                )));
            }
        }

        let layers = need("block_count")?;
        let hidden = need("embedding_length")?;
        let intermediate = need("feed_forward_length")?;
        let context = need("context_length")?;
        let heads = need("attention.head_count")?;
        let kv_heads = size("attention.head_count_kv")?.unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(g.bad(format!(
                "{heads} query heads are not a multiple of {kv_heads} key heads"
            )));
        }
        let head_dim = match size("attention.key_length")? {
            Some(v) => v,
            None if hidden % heads == 0 => hidden / heads,
            None => return Err(g.bad(format!("width {hidden} is not a multiple of {heads} heads"))),
        };
        if head_dim % 2 != 0 {
            return Err(g.bad(format!("expected heads of an even width, found {head_dim}")));
        }
        for name in ["attention.value_length", "rope.dimension_count"] {
            if let Some(v) = size(name)?.filter(|v| *v != head_dim) {
                return Err(g.bad(format!(
                    "metadata \"{}\": expected the head width {head_dim}, found {v}",
                    key(name)
                )));
            }
        }
        if let Some(window) = size("attention.sliding_window")?.filter(|w| *w < context) {
            return Err(g.bad(format!(
                "attention over a window of {window} tokens is not supported"
            )));
        }

        let number = |name: &str| {
            let key = key(name);
            match g.opt_f32(&key)? {
                Some(v) if !(v.is_finite() && v > 0.0) => Err(g.bad(format!(
                    "metadata \"{key}\": expected a positive number, found {v}"
                ))),
                v => Ok(v),
            }
        };
        let eps_key = "attention.layer_norm_rms_epsilon";
        let eps = g.required(&key(eps_key), number(eps_key)?)?;
        let rope_factor = match g.opt_str(&key("rope.scaling.type"))? {
            // A factor without a type is a linear one.
            None => number("rope.scaling.factor")?
                .or(number("rope.scale_linear")?)
                .unwrap_or(1.0),
            Some("none") => 1.0,
            Some("linear") => g.required(&key("rope.scaling.factor"), number("rope.scaling.factor")?)?,
            Some(other) => {
                return Err(g.bad(format!(
                    "rotary scaling \"{other}\" is not supported; supported are none, linear"
                )));
            }
        };

        g.check_types()?;
        let embedding = g
            .tensor("token_embd.weight")
            .ok_or_else(|| missing(g, "token_embd.weight"))?;
        let vocab = embedding.dims.get(1).copied().unwrap_or(1);
        let stated = size("vocab_size")?.unwrap_or(vocab);
        expect_dims(g, embedding, &[hidden, stated])?;
        // The tensors bound the sizes that the metadata claim before anything is allocated by them.
        for (name, count) in [("attn_q", heads), ("attn_k", kv_heads)] {
            let name = format!("blk.0.{name}.weight");
            let info = g.tensor(&name).ok_or_else(|| missing(g, &name))?;
            expect_dims(g, info, &[hidden, count.saturating_mul(head_dim)])?;
        }
        let bias = |name: &str| g.tensor(&format!("blk.0.{name}.bias")).is_some();
        let params = Self {
            architecture: architecture.to_owned(),
            layers,
            hidden,
            intermediate,
            heads,
            kv_heads,
            head_dim,
            rope_theta: number("rope.freq_base")?.unwrap_or(10_000.0),
            rope_factor,
            eps,
            vocab,
            context,
            tied: g.tensor("output.weight").is_none(),
            qkv_bias: bias("attn_q"),
            output_bias: bias("attn_output"),
            mlp_bias: bias("ffn_gate"),
        };
        // A count that the tensor table cannot hold is refused before anything is sized by it.
        if layers > g.tensors().len() {
            return Err(g.bad(format!("{layers} layers, but only {} tensors", g.tensors().len())));
        }
        Ok(params)
    }
}

fn expect_dims(g: &Gguf, info: &TensorInfo, dims: &[usize]) -> Result<()> {
    if info.dims == dims {
        return Ok(());
    }
    let (name, found) = (&info.name, &info.dims);
    Err(g.bad(format!(
        "tensor \"{name}\": expected sizes {dims:?} by the metadata, found {found:?}"
    )))
}

fn missing(g: &Gguf, name: &str) -> Error {
    g.bad(format!("tensor \"{name}\" is missing"))
}

/// How the rows of a projection are ordered in the file.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// As in the graph.
    Plain,
    /// The two halves of each head interleaved: the file pairs neighbours for the rotation, the graph pairs
    /// element `i` with `i + head_dim / 2`.
    Interleaved { head_dim: usize },
}

impl Rows {
    /// Row of the file that becomes `row`.
    fn source(self, row: usize) -> usize {
        match self {
            Self::Plain => row,
            Self::Interleaved { head_dim } => {
                let (head, i) = (row / head_dim, row % head_dim);
                let half = head_dim / 2;
                head * head_dim + 2 * (i % half) + i / half
            }
        }
    }
}

/// Writes the graph and its weights.
pub struct Builder<'a> {
    gguf: &'a Gguf,
    params: &'a Params,
    out: ModelWriter,
    used: HashSet<String>,
    /// Called with a tensor's name and the bytes of it that were written.
    progress: &'a mut dyn FnMut(&str, u64),
}

fn heap<T: Clone + Default>(length: usize, name: &str) -> Result<Vec<T>> {
    let mut v = Vec::new();
    v.try_reserve_exact(length).map_err(|e| Error::Other {
        stage: Stage::Convert,
        what: format!("tensor \"{name}\""),
        source: Some(e.into()),
    })?;
    v.resize(length, T::default());
    Ok(v)
}

impl<'a> Builder<'a> {
    /// A builder over an empty model file. `progress` is called with the name of a weight and the number of
    /// bytes of it that were written since the last call.
    pub fn new(
        gguf: &'a Gguf,
        params: &'a Params,
        out: ModelWriter,
        progress: &'a mut dyn FnMut(&str, u64),
    ) -> Self {
        Self {
            gguf,
            params,
            out,
            used: HashSet::new(),
            progress,
        }
    }

    fn find(&mut self, name: &str, dims: &[usize]) -> Result<&'a TensorInfo> {
        let info = self.gguf.tensor(name).ok_or_else(|| missing(self.gguf, name))?;
        expect_dims(self.gguf, info, dims)?;
        self.used.insert(name.to_owned());
        Ok(info)
    }

    /// Copies a tensor in its own order; the shape is that of the file, outermost first.
    fn copy(&mut self, source: &str, target: &str, dims: &[usize]) -> Result<()> {
        let info = self.find(source, dims)?;
        let shape: Vec<usize> = dims.iter().rev().copied().collect();
        let mut buffer = heap(CHUNK.min(info.elements), source)?;
        let (gguf, progress) = (self.gguf, &mut *self.progress);
        self.out
            .add_initializer_external(target, DType::F32, &shape, |out| {
                let mut first = 0;
                while first < info.elements {
                    let length = buffer.len().min(info.elements - first);
                    let part = buffer.get_mut(..length).unwrap_or_default();
                    gguf.read_f32(info, first, part)?;
                    emit(out, target, part, progress)?;
                    first += length;
                }
                Ok(())
            })
    }

    /// Copies a bias, with its elements in the graph's order.
    fn bias(&mut self, source: &str, target: &str, length: usize, rows: Rows) -> Result<()> {
        if rows == Rows::Plain {
            return self.copy(source, target, &[length]);
        }
        let info = self.find(source, &[length])?;
        let mut stored = heap(length, source)?;
        self.gguf.read_f32(info, 0, &mut stored)?;
        let ordered: Vec<f32> = (0..length)
            .filter_map(|row| stored.get(rows.source(row)).copied())
            .collect();
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(target, DType::F32, &[length], |out| {
                emit(out, target, &ordered, progress)
            })
    }

    /// Copies a matrix of `outputs` rows as its transpose `[inputs, outputs]`.
    fn matrix(
        &mut self,
        source: &str,
        target: &str,
        inputs: usize,
        outputs: usize,
        rows: Rows,
    ) -> Result<()> {
        let info = self.find(source, &[inputs, outputs])?;
        let mut stored = heap(info.elements, source)?;
        self.gguf.read_f32(info, 0, &mut stored)?;
        let mut stripe: Vec<f32> = heap(STRIPE.min(inputs) * outputs, source)?;
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(target, DType::F32, &[inputs, outputs], |out| {
                for first in (0..inputs).step_by(STRIPE) {
                    let height = STRIPE.min(inputs - first);
                    for column in 0..outputs {
                        let start = rows.source(column) * inputs + first;
                        let values = stored.get(start..start + height).unwrap_or_default();
                        for (target, value) in stripe.iter_mut().skip(column).step_by(outputs).zip(values) {
                            *target = *value;
                        }
                    }
                    emit(
                        out,
                        target,
                        stripe.get(..height * outputs).unwrap_or_default(),
                        progress,
                    )?;
                }
                Ok(())
            })
    }

    fn constant(
        &mut self,
        name: &str,
        tensor: Result<HostTensor, crate::tensor::TensorError>,
    ) -> Result<String> {
        let tensor = tensor.map_err(|e| Error::Other {
            stage: Stage::Convert,
            what: format!("constant \"{name}\""),
            source: Some(e.into()),
        })?;
        self.out.add_constant(name, &tensor)?;
        Ok(name.to_owned())
    }

    fn ints(&mut self, name: &str, values: &[i64]) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[values.len()], values))
    }

    fn scalar_int(&mut self, name: &str, value: i64) -> Result<String> {
        self.constant(name, HostTensor::from_i64(&[], &[value]))
    }

    fn scalar(&mut self, name: &str, value: f32) -> Result<String> {
        self.constant(name, HostTensor::from_f32(&[], &[value]))
    }

    /// Adds a node named `path` with one output of the given name.
    fn node_as(
        &mut self,
        op: &str,
        path: &str,
        inputs: &[&str],
        attributes: &[(&str, Attr)],
        output: &str,
    ) -> Result<()> {
        self.out.add_node(NodeSpec {
            domain: "",
            op,
            name: path,
            inputs,
            outputs: &[output],
            attributes,
        })
    }

    /// Adds a node named `path`; the value it makes is returned.
    fn node(&mut self, op: &str, path: &str, inputs: &[&str], attributes: &[(&str, Attr)]) -> Result<String> {
        let output = format!("{path}_output_0");
        self.node_as(op, path, inputs, attributes, &output)?;
        Ok(output)
    }

    fn rope_frequencies(&mut self) -> Result<Vec<f32>> {
        let p = self.params;
        let half = p.head_dim / 2;
        let mut factors = vec![1.0; half];
        if self.gguf.tensor("rope_freqs.weight").is_some() {
            let info = self.find("rope_freqs.weight", &[half])?;
            self.gguf.read_f32(info, 0, &mut factors)?;
            if let Some(v) = factors.iter().find(|v| !(v.is_finite() && **v > 0.0)) {
                return Err(self.gguf.bad(format!(
                    "tensor \"rope_freqs.weight\": expected positive numbers, found {v}"
                )));
            }
        }
        let theta = f64::from(p.rope_theta);
        let frequency = |(i, factor): (usize, &f32)| {
            let exponent = 2.0 * i as f64 / p.head_dim as f64;
            #[expect(clippy::cast_possible_truncation, reason = "frequencies are f32 in the graph")]
            let frequency =
                (1.0 / theta.powf(exponent) / f64::from(p.rope_factor) / f64::from(*factor)) as f32;
            frequency
        };
        Ok(factors.iter().enumerate().map(frequency).collect())
    }

    /// Inputs, outputs, nodes and weights of the whole model; the writer is returned for finishing.
    pub fn build(mut self) -> Result<ModelWriter> {
        let p = self.params;
        self.out.opset("", OPSET);
        self.signature()?;
        let shared = Shared::add(&mut self)?;

        self.copy("token_embd.weight", EMBEDDING, &[p.hidden, p.vocab])?;
        let mut x = self.node(
            "Gather",
            "/model/embed_tokens/Gather",
            &[EMBEDDING, "input_ids"],
            &[],
        )?;
        for layer in 0..p.layers {
            x = self.layer(layer, &x, &shared)?;
        }
        let x = self.norm("output_norm.weight", "model.norm", "/model/norm", &x, &shared)?;
        let head = if p.tied {
            self.node(
                "Transpose",
                "/lm_head/Transpose",
                &[EMBEDDING],
                &[("perm", Attr::Ints(vec![1, 0]))],
            )?
        } else {
            let name = "lm_head.weight";
            self.matrix("output.weight", name, p.hidden, p.vocab, Rows::Plain)?;
            name.to_owned()
        };
        self.node_as("MatMul", "/lm_head/MatMul", &[&x, &head], &[], "logits")?;
        self.gguf.check_all_used(&self.used)?;
        Ok(self.out)
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

    /// Root mean square normalisation with a weight.
    fn norm(&mut self, source: &str, target: &str, path: &str, x: &str, s: &Shared) -> Result<String> {
        let weight = format!("{target}.weight");
        self.copy(source, &weight, &[self.params.hidden])?;
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

    /// A projection with its weight and, when the file has one, its bias.
    fn linear(&mut self, l: &Linear<'_>, layer: usize, x: &str) -> Result<String> {
        let source = format!("blk.{layer}.{}", l.source);
        let target = format!("model.layers.{layer}.{}", l.target);
        let path = format!("/model/layers.{layer}/{}", l.target.replace('.', "/"));
        let weight = format!("{target}.weight");
        self.matrix(&format!("{source}.weight"), &weight, l.inputs, l.outputs, l.rows)?;
        let product = self.node("MatMul", &format!("{path}/MatMul"), &[x, &weight], &[])?;
        if !l.bias {
            return Ok(product);
        }
        let bias = format!("{target}.bias");
        self.bias(&format!("{source}.bias"), &bias, l.outputs, l.rows)?;
        self.node("Add", &format!("{path}/Add"), &[&product, &bias], &[])
    }

    /// Rotates `x` of shape `[batch, sequence, heads, head_dim]` by the angles of its positions.
    fn rotate(&mut self, path: &str, x: &str, s: &Shared) -> Result<String> {
        let plain = self.node("Mul", &format!("{path}/Mul"), &[x, &s.cos], &[])?;
        let bounds = [x, &s.half, &s.end, &s.axis_3, &s.one];
        let upper = self.node("Slice", &format!("{path}/Slice_1"), &bounds, &[])?;
        let negated = self.node("Neg", &format!("{path}/Neg"), &[&upper], &[])?;
        let bounds = [x, &s.zero, &s.half, &s.axis_3, &s.one];
        let lower = self.node("Slice", &format!("{path}/Slice"), &bounds, &[])?;
        let last = [("axis", Attr::Int(-1))];
        let half_turn = self.node("Concat", &format!("{path}/Concat"), &[&negated, &lower], &last)?;
        let turned = self.node("Mul", &format!("{path}/Mul_1"), &[&half_turn, &s.sin], &[])?;
        self.node("Add", &format!("{path}/Add"), &[&plain, &turned], &[])
    }

    /// Appends new keys or values to the cache and gives them a query-group axis.
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

    fn attention(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let p = self.params;
        let rows = if p.architecture == "llama" {
            Rows::Interleaved { head_dim: p.head_dim }
        } else {
            Rows::Plain
        };
        let (q_width, kv_width) = (p.heads * p.head_dim, p.kv_heads * p.head_dim);
        let path = format!("/model/layers.{layer}/self_attn");
        let at = |name: &str| format!("{path}/{name}");
        let projection = |source, target, outputs, rows| Linear {
            source,
            target,
            inputs: p.hidden,
            outputs,
            rows,
            bias: p.qkv_bias,
        };
        let swap = [("perm", Attr::Ints(vec![0, 2, 1, 3]))];

        let q = self.linear(&projection("attn_q", "self_attn.q_proj", q_width, rows), layer, x)?;
        let k = self.linear(
            &projection("attn_k", "self_attn.k_proj", kv_width, rows),
            layer,
            x,
        )?;
        let v = self.linear(
            &projection("attn_v", "self_attn.v_proj", kv_width, Rows::Plain),
            layer,
            x,
        )?;
        let q = self.node("Reshape", &at("q/Reshape"), &[&q, &s.q_heads], &[])?;
        let k = self.node("Reshape", &at("k/Reshape"), &[&k, &s.kv_heads], &[])?;
        let v = self.node("Reshape", &at("v/Reshape"), &[&v, &s.kv_heads], &[])?;
        let q = self.rotate(&at("q/rotary"), &q, s)?;
        let k = self.rotate(&at("k/rotary"), &k, s)?;
        let q = self.node("Transpose", &at("q/Transpose"), &[&q], &swap)?;
        let k = self.node("Transpose", &at("k/Transpose"), &[&k], &swap)?;
        let v = self.node("Transpose", &at("v/Transpose"), &[&v], &swap)?;
        let k = self.cache(&path, layer, "key", &k, s)?;
        let v = self.cache(&path, layer, "value", &v, s)?;

        let flip = [("perm", Attr::Ints(vec![0, 1, 2, 4, 3]))];
        let k = self.node("Transpose", &at("key/Transpose"), &[&k], &flip)?;
        let q = self.node("Reshape", &at("q/Reshape_1"), &[&q, &s.groups], &[])?;
        let scores = self.node("MatMul", &at("MatMul"), &[&q, &k], &[])?;
        let scores = self.node("Mul", &at("Mul"), &[&scores, &s.scale], &[])?;
        let scores = self.node("Add", &at("Add"), &[&scores, &s.mask], &[])?;
        let weights = self.node("Softmax", &at("Softmax"), &[&scores], &[("axis", Attr::Int(-1))])?;
        let mixed = self.node("MatMul", &at("MatMul_1"), &[&weights, &v], &[])?;
        let mixed = self.node("Reshape", &at("Reshape"), &[&mixed, &s.merged_groups], &[])?;
        let mixed = self.node("Transpose", &at("Transpose"), &[&mixed], &swap)?;
        let mixed = self.node("Reshape", &at("Reshape_1"), &[&mixed, &s.merged_heads], &[])?;
        let output = Linear {
            source: "attn_output",
            target: "self_attn.o_proj",
            inputs: q_width,
            outputs: p.hidden,
            rows: Rows::Plain,
            bias: p.output_bias,
        };
        self.linear(&output, layer, &mixed)
    }

    fn mlp(&mut self, layer: usize, x: &str) -> Result<String> {
        let p = self.params;
        let path = format!("/model/layers.{layer}/mlp");
        let matrix = |source, target, inputs, outputs| Linear {
            source,
            target,
            inputs,
            outputs,
            rows: Rows::Plain,
            bias: p.mlp_bias,
        };
        let gate = self.linear(
            &matrix("ffn_gate", "mlp.gate_proj", p.hidden, p.intermediate),
            layer,
            x,
        )?;
        let up = self.linear(
            &matrix("ffn_up", "mlp.up_proj", p.hidden, p.intermediate),
            layer,
            x,
        )?;
        let sigmoid = self.node("Sigmoid", &format!("{path}/act_fn/Sigmoid"), &[&gate], &[])?;
        let silu = self.node("Mul", &format!("{path}/act_fn/Mul"), &[&gate, &sigmoid], &[])?;
        let gated = self.node("Mul", &format!("{path}/Mul"), &[&silu, &up], &[])?;
        self.linear(
            &matrix("ffn_down", "mlp.down_proj", p.intermediate, p.hidden),
            layer,
            &gated,
        )
    }

    fn layer(&mut self, layer: usize, x: &str, s: &Shared) -> Result<String> {
        let (name, path) = (format!("model.layers.{layer}"), format!("/model/layers.{layer}"));
        let target = format!("{name}.input_layernorm");
        let source = format!("blk.{layer}.attn_norm.weight");
        let normed = self.norm(&source, &target, &format!("{path}/input_layernorm"), x, s)?;
        let attention = self.attention(layer, &normed, s)?;
        let x = self.node("Add", &format!("{path}/Add"), &[x, &attention], &[])?;
        let target = format!("{name}.post_attention_layernorm");
        let source = format!("blk.{layer}.ffn_norm.weight");
        let normed = self.norm(
            &source,
            &target,
            &format!("{path}/post_attention_layernorm"),
            &x,
            s,
        )?;
        let mlp = self.mlp(layer, &normed)?;
        self.node("Add", &format!("{path}/Add_1"), &[&x, &mlp], &[])
    }
}

fn emit(
    out: &mut ExternalData<'_>,
    name: &str,
    values: &[f32],
    progress: &mut dyn FnMut(&str, u64),
) -> Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    out.write(bytes)?;
    progress(name, bytes.len() as u64);
    Ok(())
}

/// A projection of a layer.
struct Linear<'a> {
    /// Name in the file, after `blk.{layer}.`.
    source: &'a str,
    /// Name in the graph, after `model.layers.{layer}.`.
    target: &'a str,
    inputs: usize,
    outputs: usize,
    rows: Rows,
    bias: bool,
}

/// Names of the values that all layers read.
struct Shared {
    two: String,
    eps: String,
    scale: String,
    last_axis: String,
    zero: String,
    one: String,
    half: String,
    end: String,
    axis_2: String,
    axis_3: String,
    q_heads: String,
    kv_heads: String,
    groups: String,
    merged_groups: String,
    merged_heads: String,
    cos: String,
    sin: String,
    mask: String,
}

impl Shared {
    fn add(b: &mut Builder<'_>) -> Result<Self> {
        let p = b.params;
        let int = |v: usize| i64::try_from(v).unwrap_or(i64::MAX);
        let (heads, kv_heads, dim) = (int(p.heads), int(p.kv_heads), int(p.head_dim));
        let axis_2 = b.ints("/model/constants/axis_2", &[2])?;
        let (cos, sin) = rotary(b, &axis_2)?;
        let zero = b.ints("/model/constants/zero", &[0])?;
        let one = b.ints("/model/constants/one", &[1])?;
        let mask = mask(b, &zero, &one)?;
        Ok(Self {
            two: b.scalar("/model/constants/two", 2.0)?,
            eps: b.scalar("/model/constants/eps", p.eps)?,
            scale: b.scalar("/model/constants/scale", 1.0 / (p.head_dim as f32).sqrt())?,
            last_axis: b.ints("/model/constants/last_axis", &[-1])?,
            zero,
            one,
            half: b.ints("/model/constants/half_head", &[dim / 2])?,
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
            cos,
            sin,
            mask,
        })
    }
}

/// Cosines and sines of the positions' angles, `[batch, sequence, 1, head_dim]`.
fn rotary(b: &mut Builder<'_>, axis_2: &str) -> Result<(String, String)> {
    let path = "/model/rotary_emb";
    let frequencies = b.rope_frequencies()?;
    let shape = [1, 1, frequencies.len()];
    let inv_freq = b.constant(
        "model.rotary_emb.inv_freq",
        HostTensor::from_f32(&shape, &frequencies),
    )?;
    let float = [("to", Attr::Int(1))];
    let positions = b.node("Cast", &format!("{path}/Cast"), &["position_ids"], &float)?;
    let positions = b.node(
        "Unsqueeze",
        &format!("{path}/Unsqueeze"),
        &[&positions, axis_2],
        &[],
    )?;
    let angles = b.node("Mul", &format!("{path}/Mul"), &[&positions, &inv_freq], &[])?;
    let last = [("axis", Attr::Int(-1))];
    let angles = b.node("Concat", &format!("{path}/Concat"), &[&angles, &angles], &last)?;
    let cos = b.node("Cos", &format!("{path}/Cos"), &[&angles], &[])?;
    let cos = b.node("Unsqueeze", &format!("{path}/Unsqueeze_1"), &[&cos, axis_2], &[])?;
    let sin = b.node("Sin", &format!("{path}/Sin"), &[&angles], &[])?;
    let sin = b.node("Unsqueeze", &format!("{path}/Unsqueeze_2"), &[&sin, axis_2], &[])?;
    Ok((cos, sin))
}

/// Zero where a query sees a key and [`MASKED`] elsewhere, `[batch, 1, 1, sequence, total]`.
fn mask(b: &mut Builder<'_>, axis_0: &str, axis_1: &str) -> Result<String> {
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
    b.node("Where", &at("Where"), &[&seen, &visible, &masked], &[])
}
