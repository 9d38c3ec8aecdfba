//! Converts a `ModelProto` to a [`Graph`].

use super::missing::{Missing, MissingParts};
use super::proto::{AttributeProto, DimensionValue, GraphProto, NodeProto, TypeProto};
use super::weights::{Weights, bytes};
use super::{decode, dtype_of};
use crate::error::{Error, ErrorKind, Result, Stage, kind_of_op};
use crate::graph::body::Body;
use crate::graph::op::{Attributes, OnnxName, Op, OpDef, OpError, OpResult, all};
use crate::graph::{Disorder, Edit, Graph, ValueId};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// Newest supported opset version of the standard domain.
const NEWEST_OPSET: i64 = 28;
/// Oldest supported opset version of the standard domain.
const OLDEST_OPSET: i64 = 6;

/// Options for reading a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Constants in external files that do not exist are [absent](HostTensor::absent) instead of an
    /// error. The graph can then be derived and planned; reading the elements of an absent constant
    /// is an error that names it.
    pub absent_weights: bool,
    /// Files are copied into memory instead of mapped; see
    /// [`Limits::read_files`](crate::Limits::read_files).
    pub read_files: bool,
}

impl ImportOptions {
    /// For a model that is planned but not run: weights may be absent.
    pub const PLANNING: Self = Self {
        absent_weights: true,
        read_files: false,
    };
}

/// Reads an ONNX model. Weights in external files are memory-mapped. Shapes are not derived yet.
pub fn import(path: &Path) -> Result<Graph> {
    import_with(path, ImportOptions::default())
}

/// Like [`import`], with options.
pub fn import_with(path: &Path, options: ImportOptions) -> Result<Graph> {
    let file = bytes(path, options.read_files)?;
    let model = decode::model(Stage::Import, path, file.bytes())?;
    let no_graph = || Error::file(Stage::Import, path, "not an ONNX model: there is no graph in it");
    let proto = model.graph.as_ref().ok_or_else(no_graph)?;
    let mut opsets = HashMap::new();
    for o in &model.opset_import {
        opsets.insert(standard_domain(&o.domain), o.version);
    }
    let missing = RefCell::new(Vec::new());
    // A model without operators of the standard domain need not declare its version.
    if let Some(v) = opsets.get("")
        && !(OLDEST_OPSET..=NEWEST_OPSET).contains(v)
    {
        let why = format!("opset {v} (expected {OLDEST_OPSET} to {NEWEST_OPSET})");
        missing.borrow_mut().push(Missing {
            op: "opset".to_owned(),
            name: "ai.onnx".to_owned(),
            inside: String::new(),
            source: OpError::Unsupported(why),
        });
    }
    let weights = Weights::new(path)
        .may_be_absent(options.absent_weights)
        .copied(options.read_files);
    let weights = RefCell::new(weights);
    let file = ModelFile {
        path,
        opsets: &opsets,
        weights: &weights,
        missing: &missing,
        depth: 0,
    };
    let mut graph = Graph::default();
    Importer::new(file, &mut graph, None).graph(proto)?;
    let missing = missing.take();
    if !missing.is_empty() {
        let unsupported = |m: &Missing| kind_of_op(&m.source) == ErrorKind::Unsupported;
        let kind = if missing.iter().any(unsupported) {
            ErrorKind::Unsupported
        } else {
            ErrorKind::InvalidFile
        };
        let what = "the model cannot be imported";
        return Err(Error::parse(Stage::Import, path, what, MissingParts(missing)).of_kind(kind));
    }
    let mut versions: Vec<(String, i64)> = opsets.iter().map(|(d, v)| ((*d).to_owned(), *v)).collect();
    versions.sort();
    Edit::new(&mut graph).set_opsets(versions);
    let disorder = |e| Error::parse(Stage::Import, path, "the graph is invalid", e);
    graph.ordered().map_err(disorder)?;
    graph.check()?;
    Ok(graph)
}

/// State shared by the graphs of one model.
#[derive(Clone, Copy)]
struct ModelFile<'a> {
    path: &'a Path,
    opsets: &'a HashMap<&'a str, i64>,
    weights: &'a RefCell<Weights>,
    /// Unsupported parts of all graphs.
    missing: &'a RefCell<Vec<Missing>>,
    /// Number of enclosing graphs.
    depth: usize,
}

/// Maximum nesting of graphs. Each derivation of an outer graph derives the inner ones again.
const MAX_DEPTH: usize = 8;

struct Importer<'a> {
    path: &'a Path,
    file: ModelFile<'a>,
    edit: Edit<'a>,
    names: HashMap<String, ValueId>,
    nodes: HashSet<String>,
    /// For a body: names captured from the enclosing graphs, which become inputs. `None` for the
    /// model's graph.
    outer: Option<Vec<String>>,
    /// The enclosing bodies, as text that follows a name.
    inside: String,
}

impl<'a> Importer<'a> {
    /// An importer of the model's graph, or of a body with its location as text.
    fn new(file: ModelFile<'a>, graph: &'a mut Graph, body: Option<String>) -> Self {
        Self {
            path: file.path,
            file,
            edit: Edit::new(graph),
            names: HashMap::new(),
            nodes: HashSet::new(),
            outer: body.as_ref().map(|_| Vec::new()),
            inside: body.unwrap_or_default(),
        }
    }

    fn bad(&self, what: impl Into<String>) -> Error {
        Error::file(Stage::Import, self.path, what)
    }

    /// Records a part that is not supported.
    fn miss(&self, op: &str, name: &str, source: OpError) {
        self.file.missing.borrow_mut().push(Missing {
            op: op.to_owned(),
            name: name.to_owned(),
            inside: self.inside.clone(),
            source,
        });
    }

    fn disorder(&self, what: Disorder) -> Error {
        Error::parse(Stage::Import, self.path, "the graph is invalid", what)
    }

    fn define(&mut self, name: &str, fact: Option<Fact>) -> Result<ValueId> {
        if self.names.contains_key(name) {
            return Err(self.disorder(Disorder::Twice {
                value: name.to_owned(),
            }));
        }
        let id = self.edit.push_value(name.to_owned(), fact);
        self.names.insert(name.to_owned(), id);
        Ok(id)
    }

    fn lookup(&mut self, name: &str, reader: &str) -> Result<ValueId> {
        if let Some(id) = self.names.get(name) {
            return Ok(*id);
        }
        let Some(outer) = &mut self.outer else {
            return Err(self.disorder(Disorder::Undefined {
                value: name.to_owned(),
                reader: reader.to_owned(),
            }));
        };
        outer.push(name.to_owned());
        let id = self.define(name, None)?;
        self.edit.add_input(id);
        Ok(id)
    }

    fn graph(&mut self, proto: &GraphProto) -> Result<()> {
        self.edit.set_name(proto.name.clone());
        for t in &proto.initializer {
            if let Err(why) = dtype_of(i64::from(t.data_type)) {
                self.miss("initializer", &t.name, why);
                self.define(&t.name, None)?;
                continue;
            }
            let tensor = self.file.weights.borrow_mut().tensor(t)?;
            self.define(&t.name, Some(Fact::of(Arc::new(tensor))))?;
        }
        let constants: HashSet<&str> = proto.initializer.iter().map(|t| t.name.as_str()).collect();
        for v in proto
            .input
            .iter()
            .filter(|v| !constants.contains(v.name.as_str()))
        {
            // The types of a body's inputs come from the operands of its node.
            let fact = match &self.outer {
                None => self.declared(&v.name, v.r#type.as_ref())?,
                Some(_) => None,
            };
            let id = self.define(&v.name, fact)?;
            self.edit.add_input(id);
        }
        // Producers should precede their readers; define all names first so that errors are
        // specific.
        for n in &proto.node {
            for out in n.output.iter().filter(|o| !o.is_empty()) {
                self.define(out, None)?;
            }
        }
        for (i, n) in proto.node.iter().enumerate() {
            self.node(n, i)?;
        }
        for v in &proto.output {
            let id = self.lookup(&v.name, "the list of outputs")?;
            self.edit.add_output(id);
        }
        Ok(())
    }

    /// The fact of an input; `None` if it was recorded as unsupported.
    fn declared(&self, name: &str, ty: Option<&TypeProto>) -> Result<Option<Fact>> {
        let miss = |why: &str| self.miss("input", name, OpError::Unsupported(why.to_owned()));
        let Some(tensor) = ty.and_then(|t| t.tensor_type.as_ref()) else {
            miss("a value that is not a tensor");
            return Ok(None);
        };
        let dtype = match dtype_of(i64::from(tensor.elem_type)) {
            Ok(dtype) => dtype,
            Err(e) => {
                self.miss("input", name, e);
                return Ok(None);
            }
        };
        let Some(shape) = tensor.shape.as_ref() else {
            miss("a tensor of unknown rank");
            return Ok(None);
        };
        let mut dims = Vec::new();
        for (i, d) in shape.dim.iter().enumerate() {
            dims.push(match &d.value {
                Some(DimensionValue::Value(v)) if *v >= 0 => Dim::from(*v),
                // Placeholders such as `?` do not state that two sizes are equal.
                Some(DimensionValue::Param(p)) if p.contains(char::is_alphanumeric) => {
                    self.size(name, i, p)?
                }
                _ => Dim::symbol(&format!("{name}_{i}")),
            });
        }
        Ok(Some(Fact::new(dtype, Shape(dims))))
    }

    /// A size given as text: an expression such as `past + seq`, or a name. Names that exporters
    /// derive from paths, such as `x.DynamicDimension.0`, become identifiers; other text is an
    /// error.
    fn size(&self, input: &str, axis: usize, text: &str) -> Result<Dim> {
        match Dim::parse(text) {
            Ok(d) => Ok(d),
            Err(_)
                if !text.starts_with(|c: char| c.is_ascii_digit())
                    && text.split(['.', ':', '#', '@']).all(is_word) =>
            {
                Ok(Dim::symbol(text))
            }
            Err(e) => Err(self.bad(format!("input \"{input}\", axis {axis}: {e}"))),
        }
    }

    fn node(&mut self, n: &NodeProto, position: usize) -> Result<()> {
        let mut name = if n.name.is_empty() {
            format!("{}_{position}", n.op_type)
        } else {
            n.name.clone()
        };
        // Reports find nodes by their names.
        if !self.nodes.insert(name.clone()) {
            name = format!("{name}#{position}");
        }
        let domain = standard_domain(&n.domain);
        let Some(opset) = self.file.opsets.get(domain).copied() else {
            let shown = if domain.is_empty() { "ai.onnx" } else { domain };
            let why = format!("domain \"{shown}\", whose version the model does not declare");
            self.miss(&n.op_type, &name, OpError::Unsupported(why));
            return Ok(());
        };
        let attributes = NodeAttributes {
            node: n,
            opset,
            file: self.file,
            read: RefCell::new(HashSet::new()),
            drop_omitted: Cell::new(false),
            added: RefCell::default(),
            outer: RefCell::default(),
            place: format!(" of {} \"{name}\"{}", n.op_type, self.inside),
        };
        if n.op_type == "Constant" && domain.is_empty() {
            return self.constant(n, &name, &attributes);
        }
        let known = self.file.missing.borrow().len();
        let op = operator(domain, &attributes);
        let op = match op.and_then(|op| attributes.all_read().map(|()| op)) {
            Ok(op) => op,
            Err(e) => {
                attributes.look_inside();
                // Unsupported parts of a body are recorded by its own importer.
                if self.file.missing.borrow().len() == known {
                    self.miss(&n.op_type, &name, e);
                }
                return Ok(());
            }
        };
        // Generated names; no name of the file looks like this, even if two nodes share a name.
        let generated = format!("{name}#{position}");
        let inputs = self.operands(&attributes, &name, &generated)?;
        let outputs = self.results(&attributes, &name, &generated)?;
        self.edit.add_node(&name, vec![name.clone()], op, inputs, outputs);
        Ok(())
    }

    fn constant(&mut self, n: &NodeProto, name: &str, attributes: &NodeAttributes<'_>) -> Result<()> {
        let value = attributes.within(0, 1).and_then(|()| attributes.constant());
        match value.and_then(|t| attributes.all_read().map(|()| t)) {
            Ok(tensor) => {
                let out = n.output.first().map(String::as_str).unwrap_or_default();
                let id = self.lookup(out, name)?;
                self.edit.set_fact(id, Fact::of(Arc::new(tensor)));
            }
            Err(e) => self.miss(&n.op_type, name, e),
        }
        Ok(())
    }

    /// The node's own operands, then those of its bodies, then the tensors that its import added.
    fn operands(
        &mut self,
        attributes: &NodeAttributes<'_>,
        name: &str,
        generated: &str,
    ) -> Result<Vec<Option<ValueId>>> {
        let mut inputs = Vec::with_capacity(attributes.input_count());
        for i in attributes.node.input.iter().take(attributes.input_count()) {
            inputs.push(if i.is_empty() && attributes.drop_omitted.get() {
                continue;
            } else if i.is_empty() {
                None
            } else {
                Some(self.lookup(i, name)?)
            });
        }
        for i in attributes.outer.take() {
            inputs.push(i.map(|i| self.lookup(&i, name)).transpose()?);
        }
        for tensor in attributes.added.take() {
            let operand = format!("{generated}.operand{}", inputs.len());
            inputs.push(Some(self.define(&operand, Some(Fact::of(Arc::new(tensor))))?));
        }
        Ok(inputs)
    }

    fn results(
        &mut self,
        attributes: &NodeAttributes<'_>,
        name: &str,
        generated: &str,
    ) -> Result<Vec<ValueId>> {
        let used = attributes.node.output.iter().take(attributes.output_count());
        let result = |(i, o): (usize, &String)| {
            if o.is_empty() {
                // An unused result between used ones.
                self.define(&format!("{generated}.{i}"), None)
            } else {
                self.lookup(o, name)
            }
        };
        used.enumerate().map(result).collect()
    }
}

fn standard_domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

type Definitions = HashMap<(&'static str, &'static str), Vec<(&'static OpDef, &'static OnnxName)>>;

/// The definitions of each operator, by domain and name.
static DEFINITIONS: LazyLock<Definitions> = LazyLock::new(|| {
    let mut found = Definitions::new();
    for (def, name) in all().flat_map(|d| d.onnx.iter().map(move |name| (d, name))) {
        found
            .entry((name.domain, name.name))
            .or_default()
            .push((def, name));
    }
    found
});

/// The operator of a node, by the newest definition that its opset has.
fn operator(domain: &str, attributes: &NodeAttributes<'_>) -> OpResult<Box<dyn Op>> {
    let all = DEFINITIONS.get(&(domain, attributes.node.op_type.as_str()));
    let names = || all.into_iter().flatten();
    let opset = attributes.opset;
    let known = names().filter(|(_, o)| o.since <= opset);
    if let Some((def, name)) = known.max_by_key(|(_, o)| o.since) {
        attributes.within(name.inputs, name.outputs)?;
        return (def.import)(attributes);
    }
    Err(OpError::Unsupported(match names().map(|(_, o)| o.since).min() {
        Some(since) => format!("opset {since} or later is required, the model declares {opset}"),
        None if domain.is_empty() => "unknown operator".to_owned(),
        None => format!("unknown operator of domain \"{domain}\""),
    }))
}

/// An error inside a body.
fn in_body(name: &str, error: &Error) -> OpError {
    OpError::Body(format!("in `{name}`: {}", error.chain()), error.kind())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Attributes of one node; tracks which ones are read.
struct NodeAttributes<'a> {
    node: &'a NodeProto,
    opset: i64,
    file: ModelFile<'a>,
    read: RefCell<HashSet<String>>,
    drop_omitted: Cell<bool>,
    added: RefCell<Vec<HostTensor>>,
    /// Operands after the node's own: values that bodies capture from the enclosing graphs.
    outer: RefCell<Vec<Option<String>>>,
    /// The node, as text that follows the name of one of its graphs.
    place: String,
}

impl NodeAttributes<'_> {
    fn find(&self, name: &str) -> Option<&AttributeProto> {
        let found = self.node.attribute.iter().find(|a| a.name == name);
        if found.is_some() {
            self.read.borrow_mut().insert(name.to_owned());
        }
        found
    }

    fn typed(&self, name: &str, code: i32, what: &str) -> OpResult<Option<&AttributeProto>> {
        match self.find(name) {
            // Some exporters omit the type.
            Some(a) if a.r#type == code || a.r#type == 0 => Ok(Some(a)),
            Some(a) => Err(OpError::expected(
                format!("attribute `{name}`"),
                what,
                format!("attribute type {}", a.r#type),
            )),
            None => Ok(None),
        }
    }

    /// Fails if the node has more operands or results than its operator can have.
    fn within(&self, inputs: usize, outputs: usize) -> OpResult<()> {
        let counts = [
            ("operands", inputs, self.input_count()),
            ("results", outputs, self.output_count()),
        ];
        match counts.into_iter().find(|(_, most, found)| found > most) {
            None => Ok(()),
            Some((what, most, found)) => Err(OpError::expected(
                format!("number of {what}"),
                format!("at most {most}"),
                found,
            )),
        }
    }

    /// Names of the attributes that were not read yet.
    fn unread(&self) -> Vec<&str> {
        let read = self.read.borrow();
        let names = self.node.attribute.iter().map(|a| a.name.as_str());
        names.filter(|name| !read.contains(*name)).collect()
    }

    fn all_read(&self) -> OpResult<()> {
        match self.unread().as_slice() {
            [] => Ok(()),
            [name] => Err(OpError::Unsupported(format!("attribute `{name}`"))),
            names => Err(OpError::Unsupported(format!(
                "attributes `{}`",
                names.join("`, `")
            ))),
        }
    }

    /// Records unsupported parts in the node's graphs that were not read yet.
    fn look_inside(&self) {
        let graphs = self.node.attribute.iter().filter(|a| a.g.is_some());
        let names: Vec<&str> = graphs.map(|a| a.name.as_str()).collect();
        for name in self.unread().into_iter().filter(|name| names.contains(name)) {
            // The node is already rejected, for a more specific reason.
            let _ = self.graph(name, 0);
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
            "a constant that is neither a number, a list of numbers nor a dense tensor".to_owned(),
        ))
    }
}

impl Attributes for NodeAttributes<'_> {
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

    fn result_count(&self) -> usize {
        self.node.output.len()
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
                let tensor = self.file.weights.borrow_mut().tensor(t);
                tensor
                    .map(Some)
                    .map_err(|e| OpError::expected(format!("attribute `{name}`"), "a readable tensor", e))
            }
            None => Ok(None),
        }
    }

    fn graph(&self, name: &str, after: usize) -> OpResult<Option<Body>> {
        let Some(proto) = self.typed(name, 5, "a graph")?.and_then(|a| a.g.as_ref()) else {
            return Ok(None);
        };
        let mut file = self.file;
        file.depth += 1;
        if file.depth > MAX_DEPTH {
            let why = format!("nested graphs of depth {} (limit {MAX_DEPTH})", file.depth);
            return Err(OpError::Unsupported(why));
        }
        let mut graph = Graph::default();
        let known = file.missing.borrow().len();
        let place = format!(" in `{name}`{}", self.place);
        let mut importer = Importer::new(file, &mut graph, Some(place));
        importer.graph(proto).map_err(|e| in_body(name, &e))?;
        if file.missing.borrow().len() > known {
            return Err(OpError::Unsupported(format!("`{name}`")));
        }
        let read = importer.outer.take().unwrap_or_default();
        graph.check().map_err(|e| in_body(name, &e))?;
        let mut outer = self.outer.borrow_mut();
        let missing = after.saturating_sub(self.input_count() + outer.len());
        outer.extend(std::iter::repeat_n(None, missing));
        let first = self.input_count() + outer.len();
        let body = Body::new(graph, first..first + read.len()).map_err(|e| in_body(name, &e))?;
        outer.extend(read.into_iter().map(Some));
        Ok(Some(body))
    }

    fn strings(&self, name: &str) -> OpResult<Option<Vec<String>>> {
        let Some(a) = self.typed(name, 8, "strings")? else {
            return Ok(None);
        };
        let text = |s: &Vec<u8>| {
            String::from_utf8(s.clone())
                .map_err(|_| OpError::expected(format!("attribute `{name}`"), "UTF-8", "invalid bytes"))
        };
        a.strings.iter().map(text).collect::<OpResult<_>>().map(Some)
    }

    fn string(&self, name: &str) -> OpResult<Option<String>> {
        match self.typed(name, 3, "a string")? {
            Some(a) => String::from_utf8(a.s.clone())
                .map(Some)
                .map_err(|_| OpError::expected(format!("attribute `{name}`"), "UTF-8", "invalid bytes")),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
