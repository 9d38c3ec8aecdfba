//! The attributes of a node in a file, which its operator reads.

use super::{Importer, MAX_DEPTH, MAX_LOOPS, ModelFile, in_body};
use crate::graph::Graph;
use crate::graph::body::Body;
use crate::graph::onnx::dtype_of;
use crate::graph::onnx::proto::{AttributeProto, NodeProto};
use crate::graph::op::{Attributes, OpError, OpResult};
use crate::tensor::HostTensor;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

/// Attributes of one node; tracks which ones are read.
pub(super) struct NodeAttributes<'a> {
    pub node: &'a NodeProto,
    pub opset: i64,
    pub file: ModelFile<'a>,
    pub read: RefCell<HashSet<String>>,
    pub drop_omitted: Cell<bool>,
    pub added: RefCell<Vec<HostTensor>>,
    /// Operands after the node's own: values that bodies capture from the enclosing graphs.
    pub outer: RefCell<Vec<Option<String>>>,
    /// The node, as text that follows the name of one of its graphs.
    pub place: String,
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
    pub fn within(&self, inputs: usize, outputs: usize) -> OpResult<()> {
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

    pub fn all_read(&self) -> OpResult<()> {
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
    pub fn look_inside(&self) {
        let graphs = self.node.attribute.iter().filter(|a| a.g.is_some());
        let names: Vec<&str> = graphs.map(|a| a.name.as_str()).collect();
        for name in self.unread().into_iter().filter(|name| names.contains(name)) {
            // The node is already rejected, for a more specific reason.
            let _ = self.graph(name, 0);
        }
    }

    /// The value of a `Constant` node.
    pub fn constant(&self) -> OpResult<HostTensor> {
        if let Some(t) = self.tensor("value")? {
            return Ok(t);
        }
        if let Some(sparse) = self.typed("sparse_value", 11, "a sparse tensor")? {
            let sparse = sparse.sparse_tensor.as_ref();
            let missing = || OpError::expected("attribute `sparse_value`", "a sparse tensor", "nothing");
            let dense = self.file.weights.borrow_mut().sparse(sparse.ok_or_else(missing)?);
            let dense =
                dense.map_err(|e| OpError::expected("attribute `sparse_value`", "a readable tensor", e))?;
            return Ok(dense.1);
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
            "a constant that is neither a number, a list of numbers nor a tensor".to_owned(),
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

    fn seed(&self) -> OpResult<u64> {
        if self.file.loops > 0 {
            return Err(OpError::Unsupported("random numbers in a loop".to_owned()));
        }
        let nodes = self.file.random_nodes;
        nodes.set(nodes.get().wrapping_add(1));
        // Far apart, since nodes count on from their seeds.
        let apart = nodes.get().wrapping_mul(0xD1B5_4A32_D192_ED03);
        Ok(self.file.seed.wrapping_add(apart))
    }

    fn has_output(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|o| !o.is_empty())
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
        file.loops += usize::from(self.node.op_type != "If");
        if file.depth > MAX_DEPTH || file.loops > MAX_LOOPS {
            let (depth, loops) = (file.depth, file.loops);
            let why =
                format!("graphs of depth {depth}, loops of depth {loops} (limits {MAX_DEPTH}, {MAX_LOOPS})");
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
