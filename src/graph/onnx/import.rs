//! Converts a `ModelProto` to a [`Graph`].

mod attributes;

use super::functions::{self, Added, Function, Functions, MAX_CALLS, Opsets};
use super::missing::{Missing, MissingParts};
use super::proto::{DimensionProto, DimensionValue, GraphProto, NodeProto, TypeProto};
use super::sequences::{self, Replacement, Sequences};
use super::weights::{Weights, bytes};
use super::{decode, dtype_of};
use crate::error::{Error, ErrorKind, Result, Stage, kind_of_op};
use crate::graph::op::{Attributes, OnnxName, Op, OpDef, OpError, OpResult, all};
use crate::graph::{Disorder, Edit, Graph, ValueId};
use crate::shape::{Dim, Fact, Shape};
use attributes::NodeAttributes;
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
    /// Constants in external files that do not exist are
    /// [absent](crate::tensor::HostTensor::absent) instead of an error. The graph can then be
    /// derived and planned; reading the elements of an absent constant is an error that names it.
    pub absent_weights: bool,
    /// Files are copied into memory instead of mapped; see
    /// [`Limits::read_files`](crate::Limits::read_files).
    pub read_files: bool,
    /// Seed of operators that draw random numbers, unless the node has its own attribute `seed`.
    /// Each run draws the same numbers.
    pub seed: u64,
}

impl ImportOptions {
    /// For a model that is planned but not run: weights may be absent.
    pub const PLANNING: Self = Self {
        absent_weights: true,
        read_files: false,
        seed: 0,
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
    let opsets = functions::opsets(&model.opset_import);
    let functions = functions::functions(&model);
    let missing = RefCell::new(Vec::new());
    // A model without operators of the standard domain need not declare its version.
    for opsets in functions.values().map(|f| &f.opsets).chain([&opsets]) {
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
    }
    let weights = Weights::new(path)
        .may_be_absent(options.absent_weights)
        .copied(options.read_files);
    let weights = RefCell::new(weights);
    let file = ModelFile {
        path,
        opsets: &opsets,
        own_opsets: &Opsets::from([("", sequences::OPSET)]),
        functions: &functions,
        weights: &weights,
        missing: &missing,
        depth: 0,
        loops: 0,
        open: &RefCell::default(),
        elements: &Cell::new(0),
        added: &Cell::default(),
        seed: options.seed,
        random_nodes: &Cell::new(0),
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
    /// Those of the model, or of the function whose nodes are imported.
    opsets: &'a Opsets<'a>,
    /// Those of the nodes that replace others.
    own_opsets: &'a Opsets<'a>,
    functions: &'a Functions<'a>,
    weights: &'a RefCell<Weights>,
    /// Unsupported parts of all graphs.
    missing: &'a RefCell<Vec<Missing>>,
    /// Number of enclosing graphs, and how many of them are loop bodies.
    depth: usize,
    loops: usize,
    /// The functions of the enclosing calls.
    open: &'a RefCell<Vec<[String; 3]>>,
    /// Elements of sequences so far.
    elements: &'a Cell<usize>,
    /// What calls have added.
    added: &'a Cell<Added>,
    /// See [`ImportOptions::seed`], and the number of seeds given to nodes.
    seed: u64,
    random_nodes: &'a Cell<u64>,
}

/// Maximum nesting of graphs, which bounds the stack. Protobuf decoders allow about as much.
const MAX_DEPTH: usize = 32;
/// Maximum nesting of loops. Deriving a loop may derive its body several times, so nested ones
/// multiply.
const MAX_LOOPS: usize = 8;

struct Importer<'a> {
    path: &'a Path,
    file: ModelFile<'a>,
    edit: Edit<'a>,
    names: HashMap<String, ValueId>,
    sequences: Sequences,
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
            sequences: Sequences::new(),
            nodes: HashSet::new(),
            outer: body.as_ref().map(|_| Vec::new()),
            inside: body.unwrap_or_default(),
        }
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
        if self.sequences.contains_key(name) {
            let why = format!("{reader} uses a sequence or optional");
            self.miss("value", name, OpError::Unsupported(why));
        }
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
        for t in &proto.sparse_initializer {
            let (name, tensor) = self.file.weights.borrow_mut().sparse(t)?;
            self.define(&name, Some(Fact::of(Arc::new(tensor))))?;
        }
        let constants = proto.initializer.iter().map(|t| t.name.clone());
        let sparse = proto.sparse_initializer.iter().filter_map(|t| t.values.as_ref());
        let constants: HashSet<String> = constants.chain(sparse.map(|t| t.name.clone())).collect();
        for v in &proto.input {
            if constants.contains(&v.name) {
                let id = self.lookup(&v.name, "the list of inputs")?;
                self.edit.add_default(id);
                continue;
            }
            let id = self.define(&v.name, None)?;
            // The types of a body's inputs come from the operands of its node.
            if self.outer.is_none() {
                self.declare(id, &v.name, v.r#type.as_ref());
            }
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

    /// Sets what the file states of an input, or records it as unsupported.
    fn declare(&mut self, id: ValueId, name: &str, ty: Option<&TypeProto>) {
        let Some(tensor) = ty.and_then(|t| t.tensor_type.as_ref()) else {
            let why = "type is not a tensor (sequence, optional or map)".to_owned();
            return self.miss("input", name, OpError::Unsupported(why));
        };
        let dtype = match dtype_of(i64::from(tensor.elem_type)) {
            Ok(dtype) => dtype,
            Err(e) => return self.miss("input", name, e),
        };
        let Some(shape) = tensor.shape.as_ref() else {
            return self.edit.forget_shape(id, dtype);
        };
        let size = |(i, d): (usize, &DimensionProto)| match &d.value {
            Some(DimensionValue::Value(v)) if *v >= 0 => Dim::from(*v),
            Some(DimensionValue::Param(p)) => size_named(p).unwrap_or_else(|| unnamed(name, i)),
            _ => unnamed(name, i),
        };
        let shape = Shape(shape.dim.iter().enumerate().map(size).collect());
        self.edit.set_fact(id, Fact::new(dtype, shape));
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
        if domain.is_empty() && self.sequence(n, &format!("{name}#{position}"))? {
            return Ok(());
        }
        if let Some(function) = self.function(n, domain) {
            return self.call(n, &format!("{name}#{position}"), function);
        }
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

    /// Imports the nodes in place of one that makes or reads sequences or optionals. Returns false
    /// if it does not.
    fn sequence(&mut self, n: &NodeProto, place: &str) -> Result<bool> {
        let mut known = std::mem::take(&mut self.sequences);
        let read = RefCell::new(Vec::new());
        let constant = |name: &str| {
            let id = *self.names.get(name)?;
            let fact = self.edit.value(id).fact.as_ref()?;
            let elements = fact.as_const()?.to_i64().ok()?;
            read.borrow_mut().push(id);
            Some(elements)
        };
        let mut replacement = Replacement {
            node: n,
            place,
            known: &mut known,
            ints: &constant,
            elements: self.file.elements,
            made: Vec::new(),
        };
        let is_one = replacement.run();
        let made = replacement.made;
        self.sequences = known;
        // These constants are now built in, so a run may no longer replace them.
        let read = read.into_inner();
        self.edit.remove_defaults(&read);
        match is_one {
            Ok(true) => {
                let opsets = self.file.opsets;
                // A loop keeps its opset: its body is the model's own.
                if made.iter().all(|n| n.op_type != "Loop") {
                    self.file.opsets = self.file.own_opsets;
                }
                self.nodes_for(&made)?;
                self.file.opsets = opsets;
            }
            Ok(false) => return Ok(false),
            Err(e) => self.miss(&n.op_type, place, e),
        }
        Ok(true)
    }

    /// The model's function for this node; `None` if there is none or the engine has the operator.
    fn function(&self, n: &NodeProto, domain: &str) -> Option<&'a Function<'a>> {
        if self.file.functions.is_empty() {
            return None;
        }
        let key = functions::key(&n.domain, &n.op_type, &n.overload);
        let found = self.file.functions.get(&key)?;
        let opset = self.file.opsets.get(domain).copied().unwrap_or(0);
        let own = DEFINITIONS.get(&(domain, n.op_type.as_str()));
        let is_own = own.is_some_and(|all| all.iter().any(|(_, name)| name.since <= opset));
        (!is_own).then_some(found)
    }

    /// Imports the nodes of a function in place of a call.
    fn call(&mut self, n: &NodeProto, name: &str, function: &'a Function<'a>) -> Result<()> {
        let nodes = self.file.added.get().with(function).and_then(|added| {
            self.file.added.set(added);
            let open = self.file.open.borrow();
            if open.contains(&function.key()) {
                return Err(OpError::Unsupported("a recursive function".to_owned()));
            }
            if open.len() >= MAX_CALLS {
                let why = format!("function calls nested deeper than {MAX_CALLS}");
                return Err(OpError::Unsupported(why));
            }
            function.body(n, name)
        });
        let nodes = match nodes {
            Ok(nodes) => nodes,
            Err(e) => {
                self.miss(&n.op_type, name, e);
                return Ok(());
            }
        };
        let outside = (self.file, self.inside.clone());
        self.file.open.borrow_mut().push(function.key());
        self.file.opsets = &function.opsets;
        self.inside = format!(" in the function {} of \"{name}\"{}", n.op_type, outside.1);
        self.nodes_for(&nodes)?;
        (self.file, self.inside) = outside;
        self.file.open.borrow_mut().pop();
        Ok(())
    }

    /// Imports nodes that take the place of another, whose results are defined already.
    fn nodes_for(&mut self, nodes: &[NodeProto]) -> Result<()> {
        for out in nodes.iter().flat_map(|n| &n.output).filter(|o| !o.is_empty()) {
            if !self.names.contains_key(out) {
                self.define(out, None)?;
            }
        }
        for (i, inner) in nodes.iter().enumerate() {
            self.node(inner, i)?;
        }
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

pub(super) fn standard_domain(name: &str) -> &str {
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

/// The size that a file calls `text`: an expression such as `past + seq`, or a name. `None` for
/// placeholders such as `?`, which do not state that two sizes are equal.
fn size_named(text: &str) -> Option<Dim> {
    let is_name = text.contains(char::is_alphanumeric);
    is_name.then(|| Dim::parse(text).unwrap_or_else(|_| Dim::symbol(text)))
}

/// A size without a name.
fn unnamed(input: &str, axis: usize) -> Dim {
    Dim::symbol(&format!("{input}_{axis}"))
}

#[cfg(test)]
mod tests;
