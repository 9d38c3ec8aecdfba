//! Mutations of ONNX models that keep them readable: operators, attributes, sizes, constants,
//! wiring.

use crate::work::Random;
use prost::Message;
use transformer_lite::unstable::graph::onnx::proto::{
    AttributeProto, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto, TensorProto,
    ValueInfoProto,
};
use transformer_lite::unstable::graph::op;

/// Numbers at the edges of types and kernels.
pub const EDGES: [i64; 24] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    31,
    64,
    127,
    128,
    255,
    65535,
    65536,
    -1,
    -2,
    -3,
    i64::MAX,
    i64::MIN,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 40,
    0x1_0000_0001,
];

const FLOATS: [f32; 7] = [0.0, -1.0, 0.5, 1e30, 1e-30, f32::NAN, f32::INFINITY];

const SIZES: [&str; 8] = ["n", "n+1", "2*n", "n-1", "m", "n*m", "n//2", "batch"];

const ATTRIBUTES: [&str; 20] = [
    "axis",
    "axes",
    "perm",
    "pads",
    "strides",
    "dilations",
    "group",
    "keepdims",
    "to",
    "mode",
    "k",
    "num_outputs",
    "split",
    "kernel_shape",
    "epsilon",
    "alpha",
    "ceil_mode",
    "num_heads",
    "block_size",
    "allowzero",
];

/// Codes of element types run from 0 to 26.
const TYPES: usize = 27;
/// Codes of types of attributes.
const FLOAT: i32 = 1;
const INT: i32 = 2;
const INTS: i32 = 7;
/// Graphs do not grow beyond this.
const MAX_NODES: usize = 24;
/// Bodies are mutated to this depth.
const MAX_DEPTH: usize = 4;

/// A mutated model, or `None` if `data` is not a model. Once in 8 times the result is `None`
/// anyway, so that libFuzzer mutates the bytes.
pub fn mutated(data: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if random.once_in(8) {
        return None;
    }
    let mut model = ModelProto::decode(data).ok()?;
    let graph = model.graph.as_mut()?;
    for _ in 0..=random.below(4) {
        Mutation(random).graph(graph, 0);
    }
    if random.once_in(12)
        && let Some(opset) = model.opset_import.first_mut()
    {
        opset.version = 6 + random.below(22) as i64;
    }
    Some(model.encode_to_vec())
}

struct Mutation<'a>(&'a mut Random);

impl Mutation<'_> {
    fn int(&mut self, old: i64) -> i64 {
        match self.0.below(4) {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            2 => EDGES[self.0.below(EDGES.len())],
            _ => self.0.below(9) as i64 - 2,
        }
    }

    fn one_of(&mut self, list: &mut [i64]) {
        let i = self.0.below(list.len());
        if let Some(value) = list.get_mut(i) {
            *value = self.int(*value);
        }
    }

    fn tensor(&mut self, t: &mut TensorProto) {
        match self.0.below(7) {
            0 => self.one_of(&mut t.dims),
            1 => t.data_type = self.0.below(TYPES) as i32,
            2 => {
                let byte = self.0.next() as u8;
                if let Some(place) = self.0.choose_mut(&mut t.raw_data) {
                    *place = byte;
                }
            }
            3 => self.one_of(&mut t.int64_data),
            4 => {
                t.dims.pop();
            }
            5 => {
                let size = self.int(1);
                t.dims.push(size);
            }
            _ => {
                let value = self.int(0).to_le_bytes();
                let (words, _) = t.raw_data.as_chunks_mut::<8>();
                if let Some(word) = self.0.choose_mut(words) {
                    *word = value;
                }
            }
        }
    }

    fn attribute(&mut self, a: &mut AttributeProto, depth: usize) {
        if let Some(t) = &mut a.t {
            self.tensor(t);
        }
        if let Some(body) = a.g.as_mut().filter(|_| depth < MAX_DEPTH) {
            self.graph(body, depth + 1);
        }
        self.one_of(&mut a.ints);
        if !a.ints.is_empty() && self.0.once_in(6) {
            let value = self.int(0);
            a.ints.push(value);
        }
        match a.r#type {
            INT => a.i = self.int(a.i),
            FLOAT => a.f = FLOATS[self.0.below(FLOATS.len())],
            _ => {}
        }
    }

    fn new_attribute(&mut self) -> AttributeProto {
        let mut a = AttributeProto {
            name: ATTRIBUTES[self.0.below(ATTRIBUTES.len())].into(),
            ..Default::default()
        };
        let value = self.int(1);
        if self.0.once_in(2) {
            (a.i, a.r#type) = (value, INT);
        } else {
            (a.ints, a.r#type) = (vec![value; self.0.below(5)], INTS);
        }
        a
    }

    /// Another type or shape of an input.
    fn input(&mut self, input: &mut ValueInfoProto) {
        let Some(t) = input.r#type.as_mut().and_then(|t| t.tensor_type.as_mut()) else {
            return;
        };
        if self.0.once_in(5) {
            t.elem_type = self.0.below(TYPES) as i32;
            return;
        }
        let Some(shape) = &mut t.shape else { return };
        match self.0.below(5) {
            0 => {
                shape.dim.pop();
            }
            1 => shape.dim.push(DimensionProto::default()),
            _ => {
                let value = match self.0.below(2) {
                    0 => DimensionValue::Value(self.int(2)),
                    _ => DimensionValue::Param(SIZES[self.0.below(SIZES.len())].into()),
                };
                if let Some(dim) = self.0.choose_mut(&mut shape.dim) {
                    dim.value = Some(value);
                }
            }
        }
    }

    /// A constant in place of an input.
    fn constant(&mut self, input: &ValueInfoProto) -> Option<TensorProto> {
        let elem_type = input.r#type.as_ref()?.tensor_type.as_ref()?.elem_type;
        let count = self.0.below(4);
        let mut t = TensorProto {
            name: input.name.clone(),
            data_type: elem_type,
            dims: vec![count as i64],
            ..Default::default()
        };
        match elem_type {
            1 => t.float_data = vec![1.0; count],
            7 => t.int64_data = (0..count).map(|_| self.int(1)).collect(),
            _ => {}
        }
        Some(t)
    }

    fn rewired(&mut self, node: &mut NodeProto, names: &[String]) {
        let Some(name) = self.0.choose(names).cloned() else {
            return;
        };
        let at = self.0.below(node.input.len() + 1);
        match node.input.get_mut(at) {
            Some(input) => *input = name,
            None => node.input.push(name),
        }
    }

    fn unwired(&mut self, node: &mut NodeProto) {
        let at = self.0.below(node.input.len());
        if at >= node.input.len() {
            return;
        }
        if self.0.once_in(2) {
            node.input[at].clear();
        } else {
            node.input.remove(at);
        }
    }

    fn graph(&mut self, graph: &mut GraphProto, depth: usize) {
        let inputs = graph.input.iter().map(|v| &v.name);
        let constants = graph.initializer.iter().map(|t| &t.name);
        let results = graph.node.iter().flat_map(|n| &n.output);
        let names: Vec<String> = inputs.chain(constants).chain(results).cloned().collect();
        let kind = self.0.below(16);
        let at = self.0.below(graph.node.len());
        match (kind, graph.node.get_mut(at)) {
            (0, Some(node)) => {
                let names: Vec<&str> = op::all().flat_map(|d| d.onnx.iter().map(|o| o.name)).collect();
                node.op_type = names[self.0.below(names.len())].to_owned();
            }
            (1..=3, Some(node)) => {
                let i = self.0.below(node.attribute.len());
                if let Some(a) = node.attribute.get_mut(i) {
                    self.attribute(a, depth);
                }
            }
            (4, Some(node)) => self.rewired(node, &names),
            (5, Some(node)) => self.unwired(node),
            (6, Some(node)) => {
                let mut copy = node.clone();
                let suffix = self.0.below(1000);
                copy.output
                    .iter_mut()
                    .for_each(|name| name.push_str(&format!("_{suffix}")));
                if self.0.once_in(2)
                    && let (Some(name), Some(output)) = (copy.output.first(), graph.output.first_mut())
                {
                    output.name.clone_from(name);
                }
                if graph.node.len() < MAX_NODES {
                    graph.node.push(copy);
                }
            }
            (7, Some(_)) => {
                graph.node.remove(at);
            }
            (8, Some(node)) => {
                let a = self.new_attribute();
                node.attribute.retain(|b| b.name != a.name);
                node.attribute.push(a);
            }
            (9 | 10, _) => {
                let i = self.0.below(graph.initializer.len());
                if let Some(t) = graph.initializer.get_mut(i) {
                    self.tensor(t);
                }
            }
            (11 | 12, _) => {
                let i = self.0.below(graph.input.len());
                if let Some(input) = graph.input.get_mut(i) {
                    self.input(input);
                }
            }
            (13, _) => {
                let input = self.0.choose(&graph.input).cloned();
                graph.initializer.extend(input.and_then(|i| self.constant(&i)));
            }
            (14, _) => {
                let name = self.0.choose(&names).cloned();
                if let (Some(output), Some(name)) = (self.0.choose_mut(&mut graph.output), name) {
                    output.name = name;
                }
            }
            _ => {}
        }
    }
}
