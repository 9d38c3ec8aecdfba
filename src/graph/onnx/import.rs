//! `ModelProto` to [`Graph`].

use super::dtype_of;
use super::proto::{AttributeProto, DimensionValue, GraphProto, ModelProto, NodeProto, TypeProto};
use super::weights::{Weights, map};
use crate::error::{Error, Result, Stage};
use crate::graph::op::{ALL, Attributes, Op, OpError, OpResult};
use crate::graph::{Edit, Graph, ValueId};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{Bytes, HostTensor};
use prost::Message;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Highest opset version of the standard domain whose changes are known here.
const NEWEST_OPSET: i64 = 27;
/// Lowest opset version that is read.
const OLDEST_OPSET: i64 = 6;

/// How a model is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Constants in external files that do not exist are [absent](HostTensor::absent) instead of an error: the graph can be
    /// derived and planned, and what needs their elements is an error that names them. Files that exist are mapped.
    pub absent_weights: bool,
}

/// Reads an ONNX model. Weights in external files are mapped, not read. Shapes are not derived yet.
pub fn import(path: &Path) -> Result<Graph> {
    import_with(path, ImportOptions::default())
}

/// As [`import`], with options.
pub fn import_with(path: &Path, options: ImportOptions) -> Result<Graph> {
    let file = map(path)?;
    let model = ModelProto::decode(file.bytes())
        .map_err(|e| Error::parse(Stage::Import, path, "not an ONNX model, or damaged", e))?;
    let proto = model
        .graph
        .as_ref()
        .ok_or_else(|| Error::file(Stage::Import, path, "no graph in the model; not an ONNX model?"))?;
    let mut opsets = HashMap::new();
    for o in &model.opset_import {
        let domain = if o.domain == "ai.onnx" {
            ""
        } else {
            o.domain.as_str()
        };
        opsets.insert(domain, o.version);
    }
    match opsets.get("") {
        Some(v) if (OLDEST_OPSET..=NEWEST_OPSET).contains(v) => {}
        Some(v) => {
            let why = format!("opset {v}; this engine reads opsets {OLDEST_OPSET} to {NEWEST_OPSET}");
            return Err(unsupported(path, OpError::Unsupported(why)));
        }
        None => {
            let why = "the model declares no opset of the standard domain".to_owned();
            return Err(unsupported(path, OpError::Unsupported(why)));
        }
    }
    let mut graph = Graph::default();
    let mut importer = Importer {
        path,
        opsets: &opsets,
        weights: Weights::new(path).may_be_absent(options.absent_weights),
        edit: Edit::new(&mut graph),
        names: HashMap::new(),
    };
    importer.graph(proto)?;
    graph.check()?;
    Ok(graph)
}

/// A model that is in order, but uses what this engine does not have. The cause is [`OpError::Unsupported`].
fn unsupported(path: &Path, why: OpError) -> Error {
    Error::parse(Stage::Import, path, "the model cannot be read", why)
}

struct Importer<'a> {
    path: &'a Path,
    opsets: &'a HashMap<&'a str, i64>,
    weights: Weights,
    edit: Edit<'a>,
    names: HashMap<String, ValueId>,
}

impl Importer<'_> {
    fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(Stage::Import, self.path, what)
    }

    fn unsupported(&self, why: String) -> Error {
        unsupported(self.path, OpError::Unsupported(why))
    }

    fn define(&mut self, name: &str, fact: Option<Fact>) -> Result<ValueId> {
        if self.names.contains_key(name) {
            return Err(self.bad(format!("value \"{name}\" is defined twice")));
        }
        let id = self.edit.push_value(name.to_owned(), fact);
        self.names.insert(name.to_owned(), id);
        Ok(id)
    }

    fn lookup(&self, name: &str, reader: &str) -> Result<ValueId> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| self.bad(format!("{reader} reads \"{name}\", which nothing defines")))
    }

    fn graph(&mut self, proto: &GraphProto) -> Result<()> {
        self.edit.set_name(proto.name.clone());
        for t in &proto.initializer {
            let tensor = self.weights.tensor(t)?;
            self.define(&t.name, Some(Fact::of(Arc::new(tensor))))?;
        }
        let constants: HashSet<&str> = proto.initializer.iter().map(|t| t.name.as_str()).collect();
        for v in proto
            .input
            .iter()
            .filter(|v| !constants.contains(v.name.as_str()))
        {
            let fact = self.declared(&v.name, v.r#type.as_ref())?;
            let id = self.define(&v.name, Some(fact))?;
            self.edit.add_input(id);
        }
        // Producers may follow their readers in a damaged file only; still, names come first.
        for n in &proto.node {
            for out in n.output.iter().filter(|o| !o.is_empty()) {
                self.define(out, None)?;
            }
        }
        for (i, n) in proto.node.iter().enumerate() {
            self.node(n, i)?;
        }
        for v in &proto.output {
            let id = self.lookup(&v.name, "the graph's output list")?;
            self.edit.add_output(id);
        }
        Ok(())
    }

    fn declared(&self, name: &str, ty: Option<&TypeProto>) -> Result<Fact> {
        let tensor = ty
            .and_then(|t| t.tensor_type.as_ref())
            .ok_or_else(|| self.unsupported(format!("input \"{name}\" is not a tensor")))?;
        let dtype = dtype_of(i64::from(tensor.elem_type))
            .map_err(|e| self.unsupported(format!("input \"{name}\": {e}")))?;
        let shape = tensor
            .shape
            .as_ref()
            .ok_or_else(|| self.unsupported(format!("input \"{name}\" has no rank")))?;
        let mut dims = Vec::new();
        for (i, d) in shape.dim.iter().enumerate() {
            dims.push(match &d.value {
                Some(DimensionValue::Value(v)) if *v >= 0 => Dim::from(*v),
                // An expression such as `past + seq` keeps its meaning; other text with a name in it is a symbol. What some
                // writers put for sizes that they do not know, such as `?`, says nothing of two being equal.
                Some(DimensionValue::Param(p)) if p.contains(char::is_alphanumeric) => {
                    Dim::parse(p).unwrap_or_else(|_| Dim::symbol(p))
                }
                _ => Dim::symbol(&format!("{name}_{i}")),
            });
        }
        Ok(Fact::new(dtype, Shape(dims)))
    }

    fn node(&mut self, n: &NodeProto, position: usize) -> Result<()> {
        let name = if n.name.is_empty() {
            format!("{}_{position}", n.op_type)
        } else {
            n.name.clone()
        };
        let domain = if n.domain == "ai.onnx" {
            ""
        } else {
            n.domain.as_str()
        };
        let fail = |source: OpError| Error::Node {
            stage: Stage::Import,
            op: n.op_type.clone(),
            node: name.clone(),
            inputs: String::new(),
            source: source.into(),
        };
        let opset = self.opsets.get(domain).copied().ok_or_else(|| {
            fail(OpError::Unsupported(format!(
                "domain \"{domain}\", for which the model declares no version"
            )))
        })?;
        let weights = RefCell::new(&mut self.weights);
        let attributes = NodeAttributes {
            node: n,
            opset,
            weights: &weights,
            read: RefCell::new(HashSet::new()),
            drop_omitted: Cell::new(false),
            added: RefCell::default(),
        };
        if n.op_type == "Constant" && domain.is_empty() {
            let tensor = attributes.constant().map_err(fail)?;
            attributes.all_read().map_err(fail)?;
            let out = n.output.first().map(String::as_str).unwrap_or_default();
            let id = self.lookup(out, &name)?;
            self.edit.set_fact(id, Fact::of(Arc::new(tensor)));
            return Ok(());
        }
        let names = || {
            ALL.iter()
                .flat_map(|d| d.onnx.iter().map(move |o| (d, o)))
                .filter(|(_, o)| o.domain == domain && o.name == n.op_type)
        };
        let def = names()
            .filter(|(_, o)| o.since <= opset)
            .max_by_key(|(_, o)| o.since)
            .map(|(d, _)| d);
        let Some(def) = def else {
            let why = match names().map(|(_, o)| o.since).min() {
                Some(since) => format!("it needs opset {since} or later, this model declares {opset}"),
                None if domain.is_empty() => "no such operator in this engine".to_owned(),
                None => format!("no such operator of domain \"{domain}\" in this engine"),
            };
            return Err(fail(OpError::Unsupported(why)));
        };
        let op: Box<dyn Op> = (def.import)(&attributes).map_err(fail)?;
        attributes.all_read().map_err(fail)?;
        let (count, results) = (attributes.input_count(), attributes.output_count());
        let (drop_omitted, added) = (attributes.drop_omitted.get(), attributes.added.take());
        let mut inputs = Vec::with_capacity(count);
        for i in n.input.iter().take(count) {
            inputs.push(if i.is_empty() && drop_omitted {
                continue;
            } else if i.is_empty() {
                None
            } else {
                Some(self.lookup(i, &name)?)
            });
        }
        for tensor in added {
            // No name of the file is like this one.
            let id = self.define(
                &format!("{name}#operand{}", inputs.len()),
                Some(Fact::of(Arc::new(tensor))),
            )?;
            inputs.push(Some(id));
        }
        let mut outputs = Vec::new();
        for (i, o) in n.output.iter().take(results).enumerate() {
            outputs.push(if o.is_empty() {
                // A result between others that nobody reads; names of the file cannot be empty, so this one is free.
                self.define(&format!("{name}#{i}"), None)?
            } else {
                self.lookup(o, &name)?
            });
        }
        self.edit.add_node(&name, vec![name.clone()], op, inputs, outputs);
        Ok(())
    }
}

/// Attributes of one node; notes which are read.
struct NodeAttributes<'a, 'w> {
    node: &'a NodeProto,
    opset: i64,
    weights: &'a RefCell<&'w mut Weights>,
    read: RefCell<HashSet<String>>,
    drop_omitted: Cell<bool>,
    added: RefCell<Vec<HostTensor>>,
}

impl NodeAttributes<'_, '_> {
    fn find(&self, name: &str) -> Option<&AttributeProto> {
        let found = self.node.attribute.iter().find(|a| a.name == name);
        if found.is_some() {
            self.read.borrow_mut().insert(name.to_owned());
        }
        found
    }

    fn typed(&self, name: &str, code: i32, what: &str) -> OpResult<Option<&AttributeProto>> {
        match self.find(name) {
            // Some writers leave the type out.
            Some(a) if a.r#type == code || a.r#type == 0 => Ok(Some(a)),
            Some(a) => Err(OpError::expected(
                format!("attribute `{name}`"),
                what,
                format!("attribute type {}", a.r#type),
            )),
            None => Ok(None),
        }
    }

    fn all_read(&self) -> OpResult<()> {
        match self
            .node
            .attribute
            .iter()
            .find(|a| !self.read.borrow().contains(&a.name))
        {
            Some(a) => Err(OpError::Unsupported(format!("attribute `{}`", a.name))),
            None => Ok(()),
        }
    }

    /// The value of a `Constant` node.
    fn constant(&self) -> OpResult<HostTensor> {
        if let Some(t) = self.tensor("value")? {
            return Ok(t);
        }
        if let Some(v) = self.int("value_int")? {
            return Ok(HostTensor::from_i64(&[], &[v])?);
        }
        if let Some(v) = self.ints("value_ints")? {
            return Ok(HostTensor::from_i64(&[v.len()], &v)?);
        }
        if let Some(v) = self.float("value_float")? {
            return Ok(HostTensor::from_f32(&[], &[v])?);
        }
        if let Some(v) = self.floats("value_floats")? {
            return Ok(HostTensor::from_f32(&[v.len()], &v)?);
        }
        Err(OpError::Unsupported(
            "a constant that is neither numbers nor a dense tensor".to_owned(),
        ))
    }
}

impl Attributes for NodeAttributes<'_, '_> {
    fn op_type(&self) -> &str {
        &self.node.op_type
    }

    fn opset(&self) -> i64 {
        self.opset
    }

    fn input_count(&self) -> usize {
        self.node
            .input
            .iter()
            .rposition(|i| !i.is_empty())
            .map_or(0, |i| i + 1)
    }

    fn has_input(&self, i: usize) -> bool {
        self.node.input.get(i).is_some_and(|i| !i.is_empty())
    }

    fn add_operand(&self, tensor: HostTensor) {
        self.added.borrow_mut().push(tensor);
    }

    fn drop_omitted(&self) {
        self.drop_omitted.set(true);
    }

    fn output_count(&self) -> usize {
        self.node
            .output
            .iter()
            .rposition(|o| !o.is_empty())
            .map_or(0, |i| i + 1)
    }

    fn floats(&self, name: &str) -> OpResult<Option<Vec<f32>>> {
        Ok(self.typed(name, 6, "floats")?.map(|a| a.floats.clone()))
    }

    fn int(&self, name: &str) -> OpResult<Option<i64>> {
        Ok(self.typed(name, 2, "an integer")?.map(|a| a.i))
    }

    fn float(&self, name: &str) -> OpResult<Option<f32>> {
        Ok(self.typed(name, 1, "a float")?.map(|a| a.f))
    }

    fn ints(&self, name: &str) -> OpResult<Option<Vec<i64>>> {
        Ok(self.typed(name, 7, "integers")?.map(|a| a.ints.clone()))
    }

    fn tensor(&self, name: &str) -> OpResult<Option<HostTensor>> {
        match self.typed(name, 4, "a tensor")?.and_then(|a| a.t.as_ref()) {
            Some(t) => {
                dtype_of(i64::from(t.data_type))?;
                let tensor = self.weights.borrow_mut().tensor(t);
                tensor
                    .map(Some)
                    .map_err(|e| OpError::expected(format!("attribute `{name}`"), "a readable tensor", e))
            }
            None => Ok(None),
        }
    }

    fn string(&self, name: &str) -> OpResult<Option<String>> {
        match self.typed(name, 3, "a string")? {
            Some(a) => String::from_utf8(a.s.clone())
                .map(Some)
                .map_err(|_| OpError::expected(format!("attribute `{name}`"), "UTF-8", "other bytes")),
            None => Ok(None),
        }
    }
}
