//! Functions that a model defines itself: each call is replaced by the nodes of the function.

use super::import::standard_domain;
use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::graph::op::{OpError, OpResult};
use prost::Message;
use std::collections::HashMap;

/// Maximum nesting of calls, which bounds the stack. Recursion is rejected separately.
pub(super) const MAX_CALLS: usize = 64;
/// Maximum number of nodes that inlining adds: nested calls can grow exponentially.
const MAX_NODES: usize = 1_000_000;
/// Maximum encoded size of those nodes in bytes, including constants.
const MAX_BYTES: usize = 1 << 30;

/// What the calls of a model have added so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Added {
    nodes: usize,
    bytes: usize,
}

impl Added {
    /// The same with one more call; an error if that is too much.
    pub fn with(self, f: &Function<'_>) -> OpResult<Self> {
        let added = Self {
            nodes: self.nodes.saturating_add(f.size.nodes),
            bytes: self.bytes.saturating_add(f.size.bytes),
        };
        for (what, found, most) in [
            ("nodes", added.nodes, MAX_NODES),
            ("bytes", added.bytes, MAX_BYTES),
        ] {
            if found > most {
                return Err(OpError::Unsupported(format!(
                    "functions that expand to more than {most} {what}"
                )));
            }
        }
        Ok(added)
    }
}

/// Number of nodes, with those of their graphs.
fn count(nodes: &[NodeProto]) -> usize {
    let graphs = nodes
        .iter()
        .flat_map(|n| n.attribute.iter().filter_map(|a| a.g.as_ref()));
    nodes.len() + graphs.map(|g| count(&g.node)).sum::<usize>()
}

/// Opset versions by domain.
pub(super) type Opsets<'a> = HashMap<&'a str, i64>;

/// The opset versions that a model or a function declares.
pub(super) fn opsets(list: &[super::proto::OperatorSetIdProto]) -> Opsets<'_> {
    list.iter()
        .map(|o| (standard_domain(&o.domain), o.version))
        .collect()
}

/// A function of a model.
pub(super) struct Function<'a> {
    pub proto: &'a FunctionProto,
    pub opsets: Opsets<'a>,
    size: Added,
}

/// The functions of a model by their [`key`].
pub(super) type Functions<'a> = HashMap<[String; 3], Function<'a>>;

/// What identifies a function.
pub(super) fn key(domain: &str, name: &str, overload: &str) -> [String; 3] {
    [domain, name, overload].map(str::to_owned)
}

pub(super) fn functions(model: &ModelProto) -> Functions<'_> {
    let all = model.functions.iter().map(|f| {
        let function = Function {
            proto: f,
            opsets: opsets(&f.opset_import),
            size: Added {
                nodes: count(&f.node),
                bytes: f.encoded_len(),
            },
        };
        (key(&f.domain, &f.name, &f.overload), function)
    });
    all.collect()
}

impl Function<'_> {
    /// What identifies it.
    pub fn key(&self) -> [String; 3] {
        key(&self.proto.domain, &self.proto.name, &self.proto.overload)
    }

    /// The inlined nodes of a call. `place` prefixes the names of intermediate values. An error if
    /// the call has too many operands or results, or an attribute that the function lacks.
    pub fn body(&self, call: &NodeProto, place: &str) -> OpResult<Vec<NodeProto>> {
        let f = self.proto;
        for (what, given, most) in [
            ("operands", call.input.len(), f.input.len()),
            ("results", call.output.len(), f.output.len()),
        ] {
            if given > most {
                let most = format!("at most {most}");
                return Err(OpError::expected(format!("number of {what}"), most, given));
            }
        }
        let attributes = self.attributes(call)?;
        let mut names = HashMap::new();
        for (i, formal) in f.input.iter().enumerate() {
            names.insert(formal.as_str(), call.input.get(i).cloned().unwrap_or_default());
        }
        let mut nodes = Vec::with_capacity(f.node.len());
        for (i, formal) in f.output.iter().enumerate() {
            let Some(actual) = call.output.get(i).filter(|name| !name.is_empty()) else {
                continue;
            };
            if let Some(input) = names.get(formal.as_str()) {
                nodes.push(identity(input, actual));
            } else {
                names.insert(formal, actual.clone());
            }
        }
        for value in f.node.iter().flat_map(|n| &n.output).filter(|v| !v.is_empty()) {
            let inner = || format!("{place}/{value}");
            names.entry(value).or_insert_with(inner);
        }
        let scope = Scope {
            place,
            names,
            attributes: &attributes,
        };
        nodes.extend(f.node.iter().map(|n| scope.node(n)));
        for (i, node) in nodes.iter_mut().enumerate() {
            node.name = match node.name.is_empty() {
                true => format!("{place}/{}_{i}", node.op_type),
                false => format!("{place}/{}", node.name),
            };
        }
        Ok(nodes)
    }

    /// The attributes of a call, and the defaults of those that it does not have.
    fn attributes<'a>(&'a self, call: &'a NodeProto) -> OpResult<HashMap<&'a str, &'a AttributeProto>> {
        let f = self.proto;
        let mut all: HashMap<&str, &AttributeProto> =
            f.attribute_proto.iter().map(|a| (a.name.as_str(), a)).collect();
        for a in &call.attribute {
            let known = all.contains_key(a.name.as_str()) || f.attribute.contains(&a.name);
            if !known {
                return Err(OpError::Unsupported(format!("attribute `{}`", a.name)));
            }
            all.insert(&a.name, a);
        }
        Ok(all)
    }
}

fn identity(from: &str, to: &str) -> NodeProto {
    NodeProto {
        input: vec![from.to_owned()],
        output: vec![to.to_owned()],
        op_type: "Identity".to_owned(),
        ..NodeProto::default()
    }
}

/// What the names and attributes of a function stand for in a call.
struct Scope<'a> {
    /// Begins the names of values that are not those of the call.
    place: &'a str,
    names: HashMap<&'a str, String>,
    attributes: &'a HashMap<&'a str, &'a AttributeProto>,
}

impl<'a> Scope<'a> {
    /// The name in the caller. An undefined name gets the prefix, so it captures no outer value.
    fn name(&self, name: &str) -> String {
        let unknown = || format!("{}/{name}", self.place);
        match name {
            "" => String::new(),
            name => self.names.get(name).cloned().unwrap_or_else(unknown),
        }
    }

    fn node(&self, n: &'a NodeProto) -> NodeProto {
        NodeProto {
            input: n.input.iter().map(|i| self.name(i)).collect(),
            output: n.output.iter().map(|o| self.name(o)).collect(),
            attribute: n.attribute.iter().filter_map(|a| self.attribute(a)).collect(),
            ..n.clone()
        }
    }

    /// `None` for a reference to an attribute that the call omits.
    fn attribute(&self, a: &'a AttributeProto) -> Option<AttributeProto> {
        if !a.ref_attr_name.is_empty() {
            let given = self.attributes.get(a.ref_attr_name.as_str())?;
            return Some(AttributeProto {
                name: a.name.clone(),
                ..(*given).clone()
            });
        }
        let g = a.g.as_ref().map(|g| self.graph(g));
        Some(AttributeProto { g, ..a.clone() })
    }

    /// Renames a subgraph: the values that it defines get the prefix `place`.
    fn graph(&self, g: &'a GraphProto) -> GraphProto {
        let mut scope = Scope {
            place: self.place,
            names: self.names.clone(),
            attributes: self.attributes,
        };
        let constants = g.initializer.iter().map(|t| &t.name);
        let sparse = g.sparse_initializer.iter().filter_map(|t| t.values.as_ref());
        let own = g.input.iter().map(|v| &v.name).chain(constants);
        let own = own.chain(sparse.map(|t| &t.name));
        for name in own.chain(g.node.iter().flat_map(|n| &n.output)) {
            scope.names.insert(name, format!("{}/{name}", self.place));
        }
        let mut graph = g.clone();
        graph.node = g.node.iter().map(|n| scope.node(n)).collect();
        let values = graph.input.iter_mut().chain(&mut graph.output);
        values.for_each(|v| v.name = scope.name(&v.name));
        let sparse = graph.sparse_initializer.iter_mut();
        let sparse = sparse.filter_map(|t| t.values.as_mut());
        let tensors = graph.initializer.iter_mut().chain(sparse);
        tensors.for_each(|t| t.name = scope.name(&t.name));
        graph
    }
}
