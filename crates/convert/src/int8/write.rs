//! Writes a quantized model: `QuantizeLinear` and `DequantizeLinear` around the operators of the
//! source, and integers in place of its weights.

use super::observe::floats;
use super::products::{FloatProduct, IntProduct};
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto,
};
use transformer_lite::unstable::graph::onnx::type_code;
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::graph::quantization::{Layer, LayerKind, Placement, Product};
use transformer_lite::unstable::graph::{Graph, NodeId, ValueId};
use transformer_lite::unstable::num;
use transformer_lite::unstable::quant::fixed::Affine;
use transformer_lite::unstable::tensor::DType;

/// Maximum length of a Protocol Buffers message, in bytes.
const MESSAGE_LIMIT: usize = i32::MAX as usize;

/// The parts of a quantized model.
pub(super) struct Quantized<'a> {
    pub graph: &'a Graph,
    pub placement: &'a Placement,
    pub floats: &'a [Option<FloatProduct>],
    pub products: &'a [Option<IntProduct>],
    /// Parameters of each range.
    pub ranges: &'a [Affine],
    /// The largest number of each range whose integers have fewer than 8 bits; else `None`, also
    /// for ranges that are not listed.
    pub limits: &'a [Option<f32>],
    /// Entries of the model's metadata.
    pub metadata: Vec<(String, String)>,
}

fn dims(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|n| num::signed(*n)).collect()
}

fn tensor(name: &str, dtype: DType, shape: &[usize], raw_data: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: dims(shape),
        data_type: type_code(dtype),
        name: name.to_owned(),
        raw_data,
        ..Default::default()
    }
}

pub(super) fn float_tensor(name: &str, shape: &[usize], data: &[f32]) -> TensorProto {
    let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, DType::F32, shape, bytes)
}

pub(super) fn scalar_tensor(name: &str, v: f32) -> TensorProto {
    float_tensor(name, &[], &[v])
}

pub(super) fn int_tensor(name: &str, data: &[i64]) -> TensorProto {
    let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect();
    tensor(name, DType::I64, &[data.len()], bytes)
}

fn byte_tensor(name: &str, shape: &[usize], data: &[i8]) -> TensorProto {
    let bytes = data.iter().map(|v| v.cast_unsigned()).collect();
    tensor(name, DType::I8, shape, bytes)
}

fn node(op: &str, name: &str, inputs: &[&str], output: &str, axis: Option<usize>) -> NodeProto {
    let axis = axis.map(|a| AttributeProto {
        name: "axis".to_owned(),
        i: num::signed(a),
        r#type: 2,
        ..Default::default()
    });
    NodeProto {
        input: inputs.iter().map(|s| (*s).to_owned()).collect(),
        output: vec![output.to_owned()],
        name: name.to_owned(),
        op_type: op.to_owned(),
        attribute: axis.into_iter().collect(),
        ..Default::default()
    }
}

/// The file being changed.
struct Writer<'a> {
    q: &'a Quantized<'a>,
    /// For each node of the source, the nodes that replace it.
    nodes: Vec<Vec<NodeProto>>,
    /// Nodes before all others, which read inputs and initializers.
    head: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
    /// The node of the source that computes a value, by the value's name.
    producers: HashMap<String, usize>,
    /// Names of all values and nodes.
    used: HashSet<String>,
    /// Names of the initializers with scale and zero point, by range.
    parameters: HashMap<usize, [String; 2]>,
}

/// The bytes of the quantized model. `model` is the source; its operator sets must have all
/// operators that are written.
pub(super) fn quantized(mut model: ModelProto, path: &Path, q: &Quantized<'_>) -> Result<Vec<u8>> {
    let proto = model.graph.take().unwrap_or_default();
    let mut writer = Writer::new(&proto, q);
    for (i, layer) in q.placement.layers.iter().enumerate() {
        if let (LayerKind::Product(parts), Some(float), Some(int)) = (
            &layer.kind,
            q.floats.get(i).and_then(Option::as_ref),
            q.products.get(i).and_then(Option::as_ref),
        ) {
            writer.product(layer, parts, float, int);
        }
    }
    let mut done = HashSet::new();
    for layer in &q.placement.layers {
        for v in layer.inputs.iter().chain(&layer.outputs) {
            if done.insert(*v) {
                writer.value(*v)?;
            }
        }
    }
    let mut graph = writer.finish(proto);
    embed(&mut graph, path)?;
    model.graph = Some(graph);
    for (key, value) in &q.metadata {
        model.metadata_props.retain(|p| p.key != *key);
        model.metadata_props.push(StringStringEntryProto {
            key: key.clone(),
            value: value.clone(),
        });
    }
    encoded(&model, path)
}

/// The bytes of a model made from that in `path`.
pub(super) fn encoded(model: &ModelProto, path: &Path) -> Result<Vec<u8>> {
    let length = model.encoded_len();
    if length > MESSAGE_LIMIT {
        let what = format!("the new model has {length} bytes; an ONNX file holds at most {MESSAGE_LIMIT}");
        return Err(Error::file(Stage::Quantize, path, what));
    }
    Ok(model.encode_to_vec())
}

impl<'a> Writer<'a> {
    fn new(proto: &GraphProto, q: &'a Quantized<'a>) -> Self {
        let named = |(i, n): (usize, &NodeProto)| n.output.iter().map(|o| (o.clone(), i)).collect::<Vec<_>>();
        let mut used = HashSet::new();
        for n in &proto.node {
            used.extend(n.output.iter().chain(&n.input).cloned());
            used.insert(n.name.clone());
        }
        used.extend(proto.initializer.iter().map(|t| t.name.clone()));
        used.extend(proto.input.iter().map(|v| v.name.clone()));
        Self {
            q,
            nodes: proto.node.iter().map(|n| vec![n.clone()]).collect(),
            head: Vec::new(),
            initializers: Vec::new(),
            producers: proto.node.iter().enumerate().flat_map(named).collect(),
            used,
            parameters: HashMap::new(),
        }
    }

    /// An unused name, `wanted` if possible.
    fn name(&mut self, wanted: String) -> String {
        let mut name = wanted.clone();
        let mut n = 1;
        while !self.used.insert(name.clone()) {
            name = format!("{wanted}.{n}");
            n += 1;
        }
        name
    }

    fn value_name(&self, v: ValueId) -> String {
        self.q.graph.value(v).name.clone()
    }

    /// The position of a graph node in the source.
    fn position(&self, id: NodeId) -> Option<usize> {
        let node = self.q.graph.node(id)?;
        let names = node.outputs.iter().map(|v| self.q.graph.value(*v).name.as_str());
        names
            .into_iter()
            .find_map(|name| self.producers.get(name).copied())
    }

    /// Replaces weights and bias by integers, and removes the nodes folded into them.
    fn product(&mut self, layer: &Layer, parts: &Product, float: &FloatProduct, int: &IntProduct) {
        let (Some(weights), Some(first)) = (parts.weights, layer.nodes.first()) else {
            return;
        };
        let Some(at) = self.position(*first) else { return };
        let label = self.value_name(weights.value);
        let w = self.dequantized_weights(&label, float, int);
        let bias = int.bias.as_ref().map(|b| {
            let label = self.name(format!("{label}/bias"));
            let (codes, scale) = (
                self.name(format!("{label}_quantized")),
                self.name(format!("{label}_scale")),
            );
            let bytes = b.codes.iter().flat_map(|v| v.to_le_bytes()).collect();
            let per_channel = b.scales.len() > 1 || b.codes.len() == 1;
            let shape: &[usize] = if per_channel { &[b.scales.len()] } else { &[] };
            self.initializers
                .push(tensor(&codes, DType::I32, &[b.codes.len()], bytes));
            self.initializers.push(float_tensor(&scale, shape, &b.scales));
            let op = self.name(format!("{label}/DequantizeLinear"));
            let axis = per_channel.then_some(0);
            self.head
                .push(node("DequantizeLinear", &op, &[&codes, &scale], &label, axis));
            label
        });
        let folded: Vec<NodeId> = parts.add.map(|a| a.0).into_iter().chain(parts.norm).collect();
        let last = folded.last().unwrap_or(first);
        let result = self
            .q
            .graph
            .node(*last)
            .and_then(|n| n.outputs.first())
            .map(|v| self.value_name(*v));
        for position in folded
            .iter()
            .filter_map(|id| self.position(*id))
            .collect::<Vec<_>>()
        {
            self.nodes[position].clear();
        }
        let sum = self.name(format!("{label}/sum"));
        let add = self.name(format!("{label}/Add"));
        let Some(op) = self.nodes[at].first_mut() else {
            return;
        };
        op.attribute
            .retain(|a| !(op.op_type == "Gemm" && matches!(a.name.as_str(), "alpha" | "beta")));
        if let Some(input) = op.input.get_mut(weights.operand) {
            *input = w;
        }
        let Some(result) = result else { return };
        op.output = vec![result.clone()];
        self.producers.insert(result.clone(), at);
        match bias {
            Some(bias) if op.op_type == "MatMul" => {
                op.output = vec![sum.clone()];
                self.nodes[at].push(node("Add", &add, &[&sum, &bias], &result, None));
            }
            Some(bias) => {
                op.input.truncate(2);
                op.input.push(bias);
            }
            None => op.input.truncate(2),
        }
    }

    /// Adds the weights of a product; returns the name of the dequantized ones.
    fn dequantized_weights(&mut self, label: &str, float: &FloatProduct, int: &IntProduct) -> String {
        let codes = self.name(format!("{label}_quantized"));
        let scale = self.name(format!("{label}_scale"));
        let zero = self.name(format!("{label}_zero_point"));
        let out = self.name(format!("{label}_dequantized"));
        let op = self.name(format!("{label}/DequantizeLinear"));
        let shape: &[usize] = if int.axis.is_some() {
            &[int.scales.len()]
        } else {
            &[]
        };
        self.initializers
            .push(byte_tensor(&codes, &float.form.shape, &int.codes));
        self.initializers.push(float_tensor(&scale, shape, &int.scales));
        self.initializers
            .push(byte_tensor(&zero, shape, &vec![0; int.scales.len()]));
        self.head.push(node(
            "DequantizeLinear",
            &op,
            &[&codes, &scale, &zero],
            &out,
            int.axis,
        ));
        out
    }

    /// The initializers with scale and zero point of a range.
    fn parameters(&mut self, range: usize) -> Option<([String; 2], Affine)> {
        let affine = *self.q.ranges.get(range)?;
        if let Some(names) = self.parameters.get(&range) {
            return Some((names.clone(), affine));
        }
        let first = self.q.placement.ranges.get(range)?.values.first().copied()?;
        let label = self.value_name(first);
        let names = [
            self.name(format!("{label}_scale")),
            self.name(format!("{label}_zero_point")),
        ];
        #[expect(clippy::cast_possible_truncation, reason = "between the ends of the type")]
        let zero = affine.zero as i8;
        self.initializers.push(scalar_tensor(&names[0], affine.scale));
        self.initializers.push(byte_tensor(&names[1], &[], &[zero]));
        self.parameters.insert(range, names.clone());
        Some((names, affine))
    }

    /// Quantizes a value and dequantizes it for its readers.
    fn value(&mut self, v: ValueId) -> Result<()> {
        let Some(range) = self.q.placement.range_of(v) else {
            return Ok(());
        };
        let Some(([scale, zero], affine)) = self.parameters(range) else {
            return Ok(());
        };
        let x = self.value_name(v);
        let codes = self.name(format!("{x}_quantized"));
        let [quantize, dequantize] =
            ["QuantizeLinear", "DequantizeLinear"].map(|op| self.name(format!("{x}/{op}")));
        let fact = self.q.graph.value(v).fact.as_ref();
        let constant: Option<Arc<_>> = fact.and_then(|f| f.as_const()).cloned();
        if self.q.placement.is_computed(v) {
            let float = self.name(format!("{x}_float"));
            let (clip, read) = self.clip(v, range, &float);
            let q = node("QuantizeLinear", &quantize, &[&read, &scale, &zero], &codes, None);
            let dq = node(
                "DequantizeLinear",
                &dequantize,
                &[&codes, &scale, &zero],
                &x,
                None,
            );
            if let Some(nodes) = self
                .producers
                .get(&x)
                .copied()
                .and_then(|at| self.nodes.get_mut(at))
            {
                let outputs = nodes.iter_mut().flat_map(|n| n.output.iter_mut());
                outputs.filter(|o| **o == x).for_each(|o| o.clone_from(&float));
                nodes.extend(clip.into_iter().chain([q, dq]));
            }
            return Ok(());
        }
        let out = self.name(format!("{x}_dequantized"));
        let dq = node(
            "DequantizeLinear",
            &dequantize,
            &[&codes, &scale, &zero],
            &out,
            None,
        );
        let at = self.producers.get(&x).copied();
        if let Some(t) = constant {
            let bytes: Vec<i8> = floats(&t, &x)?.iter().map(|v| code(*v, affine)).collect();
            self.initializers.push(byte_tensor(&codes, t.shape(), &bytes));
            self.head.push(dq);
        } else {
            let (clip, read) = self.clip(v, range, &x);
            let q = node("QuantizeLinear", &quantize, &[&read, &scale, &zero], &codes, None);
            let all = clip.into_iter().chain([q, dq]);
            match at.and_then(|at| self.nodes.get_mut(at)) {
                Some(nodes) => nodes.extend(all),
                None => self.head.extend(all),
            }
        }
        self.redirect(v, &x, &out);
        Ok(())
    }

    /// The node that limits the value `v`, named `from`, to integers of fewer than 8 bits, if its
    /// range has a limit; and the name of the limited value.
    fn clip(&mut self, v: ValueId, range: usize, from: &str) -> (Option<NodeProto>, String) {
        let limit = self.q.limits.get(range).copied().flatten();
        let made = self.q.placement.ranges.get(range);
        // Values that others are moved to are limited already.
        let Some(limit) = limit.filter(|_| made.is_some_and(|r| r.sources.contains(&v))) else {
            return (None, from.to_owned());
        };
        let x = self.value_name(v);
        let most = self.name(format!("{x}_most"));
        let op = self.name(format!("{x}/Clip"));
        let out = self.name(format!("{x}_limited"));
        self.initializers.push(scalar_tensor(&most, limit));
        (Some(node("Clip", &op, &[from, "", &most], &out, None)), out)
    }

    /// Makes layers read `to` in place of the value `v`, named `from`.
    fn redirect(&mut self, v: ValueId, from: &str, to: &str) {
        for layer in self.q.placement.layers.iter().filter(|l| l.inputs.contains(&v)) {
            for id in &layer.nodes {
                let nodes = self.position(*id).and_then(|at| self.nodes.get_mut(at));
                let added = |op: &str| matches!(op, "QuantizeLinear" | "DequantizeLinear");
                let ops = nodes.into_iter().flatten().filter(|n| !added(&n.op_type));
                let inputs = ops.flat_map(|n| n.input.iter_mut());
                inputs.filter(|i| *i == from).for_each(|i| to.clone_into(i));
            }
        }
    }

    /// The graph, without nodes and initializers that are no longer read.
    fn finish(self, mut proto: GraphProto) -> GraphProto {
        let all: Vec<NodeProto> = self
            .head
            .into_iter()
            .chain(self.nodes.into_iter().flatten())
            .collect();
        let mut wanted: HashSet<String> = proto.output.iter().map(|v| v.name.clone()).collect();
        let mut nodes = Vec::with_capacity(all.len());
        for mut n in all.into_iter().rev() {
            if n.output.iter().any(|o| wanted.contains(o)) {
                captured(&n, &mut wanted);
                if n.op_type == "Sum" && n.domain.is_empty() && n.input.len() == 2 {
                    // Equivalent for two operands, and more widely supported.
                    "Add".clone_into(&mut n.op_type);
                }
                nodes.push(n);
            }
        }
        nodes.reverse();
        let mut initializers = std::mem::take(&mut proto.initializer);
        initializers.extend(self.initializers);
        initializers.retain(|t| wanted.contains(&t.name));
        let constants: HashSet<&str> = initializers.iter().map(|t| t.name.as_str()).collect();
        // Old files list initializers as inputs, too. Other inputs stay, even if unread.
        let old: HashSet<ValueId> = self.q.graph.inputs().iter().copied().collect();
        let is_input = |name: &str| self.q.graph.find(name).is_some_and(|v| old.contains(&v));
        proto
            .input
            .retain(|v| is_input(&v.name) && !constants.contains(v.name.as_str()));
        proto.initializer = initializers;
        proto.node = nodes;
        // The recorded types of changed values would be wrong; readers infer them.
        proto.value_info.clear();
        proto
    }
}

/// Adds the values that a node and its subgraphs read.
fn captured(n: &NodeProto, wanted: &mut HashSet<String>) {
    wanted.extend(n.input.iter().filter(|i| !i.is_empty()).cloned());
    for graph in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
        wanted.extend(graph.output.iter().map(|v| v.name.clone()));
        graph.node.iter().for_each(|n| captured(n, wanted));
    }
}

/// The integer of a number, as `QuantizeLinear` computes it.
fn code(v: f32, affine: Affine) -> i8 {
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the type")]
    let code = ((v / affine.scale).round_ties_even() + zero(affine)).clamp(-128.0, 127.0) as i8;
    code
}

#[expect(clippy::cast_precision_loss, reason = "at most 8 bits")]
fn zero(affine: Affine) -> f32 {
    affine.zero as f32
}

/// Moves initializers from other files into the graph.
pub(super) fn embed(graph: &mut GraphProto, path: &Path) -> Result<()> {
    let nested = graph.node.iter_mut().flat_map(|n| &mut n.attribute);
    for graph in nested.filter_map(|a| a.g.as_mut()) {
        embed(graph, path)?;
    }
    let mut weights = Weights::new(path);
    for t in graph.initializer.iter_mut().filter(|t| t.data_location == 1) {
        let data = weights.tensor(t)?;
        let bytes = data.to_packed();
        let bytes =
            bytes.map_err(|e| Error::caused(Stage::Quantize, format!("initializer \"{}\"", t.name), e))?;
        // Weights in panels are read as matrices.
        t.dims = data.shape().iter().map(|n| num::signed(*n)).collect();
        t.raw_data = bytes.into_owned();
        t.external_data.clear();
        t.data_location = 0;
        t.metadata_props.clear();
    }
    Ok(())
}
