//! Nodes of the graph: producers and readers of its values, and how nodes change.

use std::collections::{HashMap, HashSet};
use transformer_lite::unstable::graph::onnx::proto::{AttributeProto, GraphProto, NodeProto};
use transformer_lite::unstable::graph::onnx::{dtype_of, type_name};
use transformer_lite::unstable::tensor::DType;

/// The change of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Keep,
    Drop,
    Replace(Vec<NodeProto>),
}

/// How a node reads a weight.
#[derive(Clone, Copy)]
pub enum Use {
    /// As second operand of a matmul.
    Product(usize),
    /// Rows selected by indices.
    Rows(usize),
    Other(usize),
}

impl Use {
    /// The node, if it can read a packed weight.
    pub fn reader(self) -> Option<usize> {
        match self {
            Self::Product(n) | Self::Rows(n) => Some(n),
            Self::Other(_) => None,
        }
    }
}

/// A reader of a weight and whether it reads the transpose.
pub type Reader = (Use, bool);

/// Producers and readers of the values of a graph.
pub struct Facts<'a> {
    graph: &'a GraphProto,
    /// Nodes that read a value, with the operand index.
    pub readers: HashMap<&'a str, Vec<(usize, usize)>>,
    producers: HashMap<&'a str, usize>,
    /// Values that are used outside the graph's own nodes.
    pub outside: HashSet<&'a str>,
    pub constants: HashMap<&'a str, usize>,
}

pub fn standard(n: &NodeProto) -> bool {
    n.domain.is_empty() || n.domain == "ai.onnx"
}

pub fn attribute<'a>(n: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    n.attribute.iter().find(|a| a.name == name)
}

pub fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i,
        r#type: 2,
        ..Default::default()
    }
}

impl<'a> Facts<'a> {
    pub fn new(graph: &'a GraphProto) -> Self {
        let mut facts = Self {
            graph,
            readers: HashMap::new(),
            producers: HashMap::new(),
            outside: HashSet::new(),
            constants: HashMap::new(),
        };
        facts.constants.extend(
            graph
                .initializer
                .iter()
                .enumerate()
                .map(|(i, t)| (t.name.as_str(), i)),
        );
        facts
            .outside
            .extend(graph.input.iter().chain(&graph.output).map(|v| v.name.as_str()));
        for (i, n) in graph.node.iter().enumerate() {
            for (at, name) in n.input.iter().enumerate() {
                facts.readers.entry(name).or_default().push((i, at));
            }
            facts.producers.extend(n.output.iter().map(|o| (o.as_str(), i)));
            for inner in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
                facts.inner(inner);
            }
        }
        facts
    }

    /// Records what the body of a loop or branch reads. Names that the body defines itself are
    /// recorded too, which is harmless.
    fn inner(&mut self, graph: &'a GraphProto) {
        self.outside.extend(graph.output.iter().map(|v| v.name.as_str()));
        for n in &graph.node {
            self.outside.extend(n.input.iter().map(String::as_str));
            for g in n.attribute.iter().filter_map(|a| a.g.as_ref()) {
                self.inner(g);
            }
        }
    }

    /// True if a matmul or embedding is among the readers of a matrix.
    pub fn wants(&self, uses: &[Reader]) -> bool {
        uses.iter().any(|(u, _)| match u {
            Use::Product(_) | Use::Rows(_) => true,
            Use::Other(n) => self.graph.node[*n].op_type == "Gemm",
        })
    }

    pub fn names(&self) -> HashSet<String> {
        let known = self
            .producers
            .keys()
            .chain(self.constants.keys())
            .chain(&self.outside);
        known.map(|n| (*n).to_owned()).collect()
    }

    /// Readers of a rank-2 constant, directly or through transposes, and those transposes.
    pub fn uses(&self, name: &str) -> (Vec<Reader>, Vec<usize>) {
        let (mut uses, mut transposes) = (Vec::new(), Vec::new());
        for &(i, at) in self.readers.get(name).into_iter().flatten() {
            let n = &self.graph.node[i];
            let swaps = attribute(n, "perm").is_none_or(|p| p.ints == [1, 0]);
            match n.output.first() {
                Some(out)
                    if standard(n)
                        && n.op_type == "Transpose"
                        && swaps
                        && !self.outside.contains(out.as_str()) =>
                {
                    transposes.push(i);
                    let through = self.readers.get(out.as_str()).into_iter().flatten();
                    uses.extend(through.map(|&(j, at)| (self.usage(j, at), true)));
                }
                _ => uses.push((self.usage(i, at), false)),
            }
        }
        (uses, transposes)
    }

    fn usage(&self, node: usize, operand: usize) -> Use {
        let n = &self.graph.node[node];
        let axis = || attribute(n, "axis").map_or(0, |a| a.i);
        match (n.op_type.as_str(), operand) {
            _ if !standard(n) => Use::Other(node),
            // A matmul of the weight with itself reads it twice.
            ("MatMul", 1) if n.input.first() != n.input.get(1) => Use::Product(node),
            ("Gather", 0) if matches!(axis(), 0 | -2) => Use::Rows(node),
            _ => Use::Other(node),
        }
    }

    /// Whether the matrix to pack is the transpose of the constant; an error with the reason if it
    /// cannot be packed.
    pub fn orientation(
        &self,
        name: &str,
        data_type: i32,
        uses: &[Reader],
        transposes: &[usize],
    ) -> std::result::Result<bool, String> {
        if self.outside.contains(name) {
            return Err("it is also an input or output of the graph, or read by an inner graph".to_owned());
        }
        let dtype = dtype_of(i64::from(data_type)).ok().filter(|d| d.is_float());
        let Some(dtype) = dtype else {
            return Err(format!(
                "its element type {} cannot be quantized",
                type_name(i64::from(data_type))
            ));
        };
        let mut found = None;
        for (u, through) in uses {
            let wanted = match u {
                Use::Product(_) => *through,
                Use::Rows(n) if dtype != DType::F32 => {
                    return Err(format!(
                        "{dtype} rows are read by \"{}\", but GatherE0M makes f32",
                        self.shown(*n)
                    ));
                }
                Use::Rows(_) => !*through,
                Use::Other(n) => {
                    return Err(format!(
                        "it is read by {} \"{}\", which cannot read packed weights",
                        self.graph.node[*n].op_type,
                        self.shown(*n)
                    ));
                }
            };
            if *found.get_or_insert(wanted) != wanted {
                return Err("it is read both directly and transposed".to_owned());
            }
        }
        let rows_only = uses.iter().all(|(u, _)| matches!(u, Use::Rows(_)));
        if rows_only
            && !uses
                .iter()
                .any(|(u, _)| matches!(u, Use::Rows(n) if self.by_tokens(*n)))
        {
            return Err("its rows are selected by position, not by token".to_owned());
        }
        // A transpose without other readers is removed with its reader.
        found.ok_or_else(|| format!("{} transposes of it have no reader", transposes.len()))
    }

    fn shown(&self, node: usize) -> String {
        let n = &self.graph.node[node];
        if n.name.is_empty() {
            format!("{}_{node}", n.op_type)
        } else {
            n.name.clone()
        }
    }

    /// True if the indices of a `Gather` come straight from a graph input that does not hold
    /// positions. Tables of rotary angles and similar are read by position and need their
    /// precision.
    fn by_tokens(&self, node: usize) -> bool {
        let mut value = self.graph.node[node].input.get(1).map_or("", String::as_str);
        for _ in 0..self.graph.node.len() {
            if self.graph.input.iter().any(|v| v.name == value) {
                return !value.contains("position");
            }
            let Some(n) = self.producers.get(value).map(|i| &self.graph.node[*i]) else {
                return false;
            };
            if !matches!(
                n.op_type.as_str(),
                "Cast" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten"
            ) {
                return false;
            }
            value = n.input.first().map_or("", String::as_str);
        }
        false
    }

    /// The matmul that makes the output `logits`, through operators that keep rows of logits.
    pub fn head(&self) -> Option<usize> {
        let mut value = self
            .graph
            .output
            .iter()
            .find(|v| v.name == "logits")?
            .name
            .as_str();
        for _ in 0..self.graph.node.len() {
            let at = *self.producers.get(value)?;
            let n = &self.graph.node[at];
            value = match n.op_type.as_str() {
                "MatMul" => return Some(at),
                "Cast" | "Identity" | "Reshape" | "Squeeze" | "Unsqueeze" | "Tanh" | "Add" | "Mul"
                | "Div" => n
                    .input
                    .iter()
                    .find(|i| !self.constants.contains_key(i.as_str()))?,
                // A transpose that keeps the vocabulary last.
                "Transpose"
                    if attribute(n, "perm").is_some_and(|p| {
                        p.ints
                            .last()
                            .is_some_and(|l| usize::try_from(*l).is_ok_and(|l| l + 1 == p.ints.len()))
                    }) =>
                {
                    n.input.first()?
                }
                _ => return None,
            };
        }
        None
    }
}
