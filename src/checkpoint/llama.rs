//! The architectures `llama` and `qwen2` as ONNX graphs.

use super::{Kept, Params, Stored, Tensors};
use crate::error::{Error, Result, Stage};
use crate::graph::onnx::quantize::{Left, Quantized};
use crate::graph::onnx::write::{Attr, ExternalData, ModelWriter, NodeSpec, Size};
use crate::graph::op::OWN_DOMAIN;
use crate::quant::{Bits, Grids, QuantError};
use crate::tensor::{DType, HostTensor, TensorError};

/// Added to the scores of keys that a query must not see.
const MASKED: f32 = f32::MIN;
/// Operator set of the graph.
const OPSET: i64 = 18;
/// Elements that are decoded at once when a tensor is copied in its own order.
const CHUNK: usize = 1 << 20;
/// Rows of a transposed matrix that are gathered at once.
const STRIPE: usize = 64;
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Writes the graph and its weights.
pub struct Builder<'a> {
    tensors: &'a dyn Tensors,
    params: &'a Params,
    out: ModelWriter,
    keep_bits: bool,
    kept: Kept,
    /// The value whose elements were last put in another order, that order, and the result.
    ordered: Option<(String, Vec<usize>, String)>,
    /// Called with a tensor's name and the bytes of it that were written, in `f32`.
    progress: &'a mut dyn FnMut(&str, u64),
}

/// A constant matrix of the graph, `[inputs, outputs]`.
#[derive(Clone, Debug)]
enum Matrix {
    /// The name of a float one.
    Float(String),
    Packed(Packed),
}

#[derive(Clone, Debug)]
struct Packed {
    codes: String,
    scales: String,
    bits: Bits,
    group: usize,
    /// Its row i is for input `order[i]`.
    order: Option<Vec<usize>>,
}

impl Packed {
    fn attributes(&self) -> [(&'static str, Attr); 2] {
        let group = i64::try_from(self.group).unwrap_or(i64::MAX);
        [
            ("bits", Attr::Int(i64::from(self.bits.count()))),
            ("group_size", Attr::Int(group)),
        ]
    }
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
    /// A builder over an empty model file. With `keep_bits` matrices that are stored as codes on grids stay such, as E0M. `progress` is
    /// called with the name of a weight and the number of bytes of it that were written since the last call, each weight counted as an `f32`.
    pub fn new(
        tensors: &'a dyn Tensors,
        params: &'a Params,
        out: ModelWriter,
        keep_bits: bool,
        progress: &'a mut dyn FnMut(&str, u64),
    ) -> Self {
        Self {
            tensors,
            params,
            out,
            keep_bits,
            kept: Kept::default(),
            ordered: None,
            progress,
        }
    }

    /// Copies a tensor in its own order.
    fn copy(&mut self, name: &str, shape: &[usize], stored: &Stored<'_>) -> Result<()> {
        let (rows, width) = match shape {
            [rows, width] => (*rows, *width),
            _ => (shape.iter().product(), 1),
        };
        let at_once = (CHUNK / width).clamp(1, rows.max(1));
        let mut buffer: Vec<f32> = heap(at_once * width, name)?;
        let progress = &mut *self.progress;
        self.out.add_initializer_external(name, DType::F32, shape, |out| {
            for first in (0..rows).step_by(at_once) {
                let count = at_once.min(rows - first);
                let part = buffer.get_mut(..count * width).unwrap_or_default();
                (stored.rows)(first, part)?;
                emit(out, name, part, progress)?;
            }
            Ok(())
        })
    }

    /// Copies a vector, its elements in the order of `columns` if that is given.
    fn vector(&mut self, name: &str, length: usize, columns: Option<&[usize]>) -> Result<()> {
        let stored = self.tensors.stored(name, &[length])?;
        let Some(columns) = columns else {
            return self.copy(name, &[length], &stored);
        };
        let mut values = heap(length, name)?;
        (stored.rows)(0, &mut values)?;
        let ordered: Vec<f32> = columns.iter().filter_map(|c| values.get(*c).copied()).collect();
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(name, DType::F32, &[length], |out| {
                emit(out, name, &ordered, progress)
            })
    }

    /// Copies a matrix of `outputs` rows as its transpose `[inputs, outputs]`, its columns in the order of `columns` if that is given.
    fn matrix(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        columns: Option<&[usize]>,
    ) -> Result<Matrix> {
        let mut stored = self.tensors.stored(name, &[outputs, inputs])?;
        if let Some(grids) = self.grids(name, &[outputs, inputs], &mut stored) {
            return Ok(Matrix::Packed(self.pack(name, grids, &stored, columns)?));
        }
        let mut all: Vec<f32> = heap(inputs * outputs, name)?;
        (stored.rows)(0, &mut all)?;
        let mut stripe: Vec<f32> = heap(STRIPE.min(inputs) * outputs, name)?;
        let progress = &mut *self.progress;
        self.out
            .add_initializer_external(name, DType::F32, &[inputs, outputs], |out| {
                for first in (0..inputs).step_by(STRIPE) {
                    let height = STRIPE.min(inputs - first);
                    for column in 0..outputs {
                        let row = columns.map_or(column, |c| c.get(column).copied().unwrap_or(column));
                        let start = row * inputs + first;
                        let values = all.get(start..start + height).unwrap_or_default();
                        for (target, value) in stripe.iter_mut().skip(column).step_by(outputs).zip(values) {
                            *target = *value;
                        }
                    }
                    emit(
                        out,
                        name,
                        stripe.get(..height * outputs).unwrap_or_default(),
                        progress,
                    )?;
                }
                Ok(())
            })?;
        Ok(Matrix::Float(name.to_owned()))
    }

    /// The grids of a matrix that keeps its bits. One that is to be kept and cannot is noted.
    fn grids<'s>(&mut self, name: &str, shape: &[usize], stored: &mut Stored<'s>) -> Option<Grids<'s>> {
        if !self.keep_bits {
            return None;
        }
        let grids = stored.grids.take();
        let reason = match &grids {
            None => format!("it is stored as {}", stored.kind),
            Some(g) => {
                let (k, n, step) = (g.k, g.n, g.bits.k_step());
                if k.is_multiple_of(step) && n.is_multiple_of(2) {
                    return grids;
                }
                QuantError::Size { k, n, step }.to_string()
            }
        };
        self.kept.left.push(Left {
            name: name.to_owned(),
            shape: shape.to_vec(),
            reason,
        });
        None
    }

    /// Writes a matrix of codes on grids, its columns in the order of `columns` if that is given.
    fn pack<'g>(
        &mut self,
        name: &str,
        mut grids: Grids<'g>,
        stored: &Stored<'_>,
        columns: Option<&'g [usize]>,
    ) -> Result<Packed> {
        if let Some(columns) = columns {
            let column = grids.column;
            grids.column = Box::new(move |j, out| column(columns.get(j).copied().unwrap_or(j), out));
        }
        let packed = grids.pack().map_err(|e| self.tensors.bad(name, &e.to_string()));
        let (packed, loss) = packed?;
        let out = Packed {
            codes: format!("{name}.codes"),
            scales: format!("{name}.scales"),
            bits: packed.bits,
            group: packed.group,
            order: stored.order.clone(),
        };
        let (codes, scales): (&[u8], &[u8]) = (
            bytemuck::cast_slice(&packed.codes),
            bytemuck::cast_slice(&packed.scales),
        );
        let shape = [packed.bits.rows(packed.k), packed.n];
        self.out
            .add_initializer_external(&out.codes, DType::U32, &shape, |to| to.write(codes))?;
        let shape = [packed.k.div_ceil(packed.group), packed.n, 2];
        self.out
            .add_initializer_external(&out.scales, DType::F16, &shape, |to| to.write(scales))?;
        (self.progress)(name, (packed.k * packed.n * size_of::<f32>()) as u64);
        let (format, after) = ((packed.bits, packed.group), (codes.len() + scales.len()) as u64);
        let shape = [packed.n, packed.k];
        let row = Quantized::new(name, &shape, format, &loss, stored.bytes, after);
        self.kept.weights.push(row);
        Ok(out)
    }

    /// The product of `x` and a matrix, made by the node `path` as the value `output`.
    fn product(&mut self, path: &str, x: &str, matrix: &Matrix, output: &str) -> Result<()> {
        let packed = match matrix {
            Matrix::Float(name) => return self.node_as("MatMul", path, &[x, name], &[], output),
            Matrix::Packed(packed) => packed,
        };
        let x = match &packed.order {
            Some(order) => self.in_order(path, x, order)?,
            None => x.to_owned(),
        };
        self.own_node("MatMulE0M", path, &x, packed, output)
    }

    /// A node of our own domain that reads a packed matrix.
    fn own_node(&mut self, op: &str, path: &str, x: &str, packed: &Packed, output: &str) -> Result<()> {
        self.out.add_node(NodeSpec {
            domain: OWN_DOMAIN,
            op,
            name: path,
            inputs: &[x, &packed.codes, &packed.scales],
            outputs: &[output],
            attributes: &packed.attributes(),
        })
    }

    /// The elements of `x` along its last axis in another order. Products that read one value in one order share the result.
    fn in_order(&mut self, path: &str, x: &str, order: &[usize]) -> Result<String> {
        if let Some((of, known, result)) = &self.ordered
            && of == x
            && known == order
        {
            return Ok(result.clone());
        }
        let list: Vec<i64> = order
            .iter()
            .map(|i| i64::try_from(*i).unwrap_or(i64::MAX))
            .collect();
        let name = format!("{path}/order");
        let tensor = HostTensor::from_i64(&[list.len()], &list).map_err(|e| constant_error(&name, e))?;
        self.out.add_initializer(&name, &tensor)?;
        let result = self.node(
            "Gather",
            &format!("{path}/Gather"),
            &[x, &name],
            &[("axis", Attr::Int(-1))],
        )?;
        self.ordered = Some((x.to_owned(), order.to_vec(), result.clone()));
        Ok(result)
    }

    fn constant(&mut self, name: &str, tensor: Result<HostTensor, TensorError>) -> Result<String> {
        let tensor = tensor.map_err(|e| constant_error(name, e))?;
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

    fn rope_frequencies(&self) -> Vec<f32> {
        let p = self.params;
        let theta = f64::from(p.rope_theta);
        let frequency = |(i, factor): (usize, &f32)| {
            let exponent = 2.0 * i as f64 / p.head_dim as f64;
            #[expect(clippy::cast_possible_truncation, reason = "frequencies are f32 in the graph")]
            let frequency =
                (1.0 / theta.powf(exponent) / f64::from(p.rope_factor) / f64::from(*factor)) as f32;
            frequency
        };
        p.rope_factors.iter().enumerate().map(frequency).collect()
    }

    /// Inputs, outputs, nodes and weights of the whole model; the writer is returned for finishing, with what was kept.
    pub fn build(mut self) -> Result<(ModelWriter, Kept)> {
        let p = self.params;
        self.out.opset("", OPSET);
        self.signature()?;
        let shared = Shared::add(&mut self)?;

        let (mut x, mut head) = self.embedding()?;
        for layer in 0..p.layers {
            x = self.layer(layer, &x, &shared)?;
        }
        let x = self.norm("model.norm", "/model/norm", &x, &shared)?;
        if !p.tied {
            head = self.matrix("lm_head.weight", p.hidden, p.vocab, None)?;
        } else if let Matrix::Float(name) = head {
            let swap = [("perm", Attr::Ints(vec![1, 0]))];
            head = Matrix::Float(self.node("Transpose", "/lm_head/Transpose", &[&name], &swap)?);
        }
        self.product("/lm_head/MatMul", &x, &head, "logits")?;
        self.tensors.all_used()?;
        if !self.kept.weights.is_empty() {
            self.out.opset(OWN_DOMAIN, 1);
        }
        Ok((self.out, self.kept))
    }

    /// The rows of the tokens, and the table as it is stored, `[vocab, hidden]` where it is one of floats.
    fn embedding(&mut self) -> Result<(String, Matrix)> {
        let p = self.params;
        let path = "/model/embed_tokens/Gather";
        let shape = [p.vocab, p.hidden];
        let mut stored = self.tensors.stored(EMBEDDING, &shape)?;
        match self.grids(EMBEDDING, &shape, &mut stored) {
            Some(grids) => {
                let packed = self.pack(EMBEDDING, grids, &stored, None)?;
                let x = format!("{path}_output_0");
                self.own_node("GatherE0M", path, "input_ids", &packed, &x)?;
                Ok((x, Matrix::Packed(packed)))
            }
            None => {
                self.copy(EMBEDDING, &shape, &stored)?;
                let x = self.node("Gather", path, &[EMBEDDING, "input_ids"], &[])?;
                Ok((x, Matrix::Float(EMBEDDING.to_owned())))
            }
        }
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
    fn norm(&mut self, target: &str, path: &str, x: &str, s: &Shared) -> Result<String> {
        let weight = format!("{target}.weight");
        self.vector(&weight, self.params.hidden, None)?;
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

    /// A projection with its weight and, when the checkpoint has one, its bias.
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
        self.vector(&bias, l.outputs, l.columns)?;
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
        let (q_width, kv_width) = (p.heads * p.head_dim, p.kv_heads * p.head_dim);
        let path = format!("/model/layers.{layer}/self_attn");
        let at = |name: &str| format!("{path}/{name}");
        let projection = |target, outputs| Linear {
            target,
            inputs: p.hidden,
            outputs,
            bias: p.qkv_bias,
            columns: None,
            in_order: false,
        };
        let swap = [("perm", Attr::Ints(vec![0, 2, 1, 3]))];

        let q = self.linear(&projection("self_attn.q_proj", q_width), layer, x)?;
        let k = self.linear(&projection("self_attn.k_proj", kv_width), layer, x)?;
        let v = self.linear(&projection("self_attn.v_proj", kv_width), layer, x)?;
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
            target: "self_attn.o_proj",
            inputs: q_width,
            outputs: p.hidden,
            bias: p.output_bias,
            columns: None,
            in_order: false,
        };
        self.linear(&output, layer, &mixed)
    }

    fn mlp(&mut self, layer: usize, x: &str) -> Result<String> {
        let p = self.params;
        let path = format!("/model/layers.{layer}/mlp");
        // What lies between the matrices may stand in the order that the last one wants, for nothing.
        let order = if self.keep_bits {
            let name = format!("model.layers.{layer}.mlp.down_proj.weight");
            self.tensors.stored(&name, &[p.hidden, p.intermediate])?.order
        } else {
            None
        };
        let matrix = |target| Linear {
            target,
            inputs: p.hidden,
            outputs: p.intermediate,
            bias: p.mlp_bias,
            columns: order.as_deref(),
            in_order: false,
        };
        let gate = self.linear(&matrix("mlp.gate_proj"), layer, x)?;
        let up = self.linear(&matrix("mlp.up_proj"), layer, x)?;
        let sigmoid = self.node("Sigmoid", &format!("{path}/act_fn/Sigmoid"), &[&gate], &[])?;
        let silu = self.node("Mul", &format!("{path}/act_fn/Mul"), &[&gate, &sigmoid], &[])?;
        let gated = self.node("Mul", &format!("{path}/Mul"), &[&silu, &up], &[])?;
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
        let (name, path) = (format!("model.layers.{layer}"), format!("/model/layers.{layer}"));
        let target = format!("{name}.input_layernorm");
        let normed = self.norm(&target, &format!("{path}/input_layernorm"), x, s)?;
        let attention = self.attention(layer, &normed, s)?;
        let x = self.node("Add", &format!("{path}/Add"), &[x, &attention], &[])?;
        let target = format!("{name}.post_attention_layernorm");
        let normed = self.norm(&target, &format!("{path}/post_attention_layernorm"), &x, s)?;
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

fn constant_error(name: &str, e: TensorError) -> Error {
    Error::Other {
        stage: Stage::Convert,
        what: format!("constant \"{name}\""),
        source: Some(e.into()),
    }
}

/// A projection of a layer.
struct Linear<'a> {
    /// Name, after `model.layers.{layer}.`.
    target: &'a str,
    inputs: usize,
    outputs: usize,
    bias: bool,
    /// Its columns are wanted in this order.
    columns: Option<&'a [usize]>,
    /// Its input comes in the order that it wants.
    in_order: bool,
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
    let frequencies = b.rope_frequencies();
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
