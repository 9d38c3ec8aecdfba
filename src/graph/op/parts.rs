//! [`Parts`], with which [`super::Op::parts`] builds the nodes that replace a node.

use super::gather::Gather;
use super::pointwise::{Expr, Pointwise};
use super::range as op_range;
use super::reshape::Reshape;
use super::shape_of::ShapeOf;
use super::slice::Slice;
use super::{InferCx, Op, OpError, OpResult};
use crate::graph::body::Body;
use crate::graph::derive;
use crate::graph::{Edit, Node, NodeId, ValueId};
use crate::num;
use crate::shape::Fact;
use crate::tensor::HostTensor;
use std::ops::Range;
use std::sync::Arc;

/// Builds the nodes that replace one node; they are removed again if the node stays.
#[derive(Debug)]
pub struct Parts<'a, 'b> {
    edit: &'a mut Edit<'b>,
    node: &'a Node,
    made: Vec<NodeId>,
}

impl<'a, 'b> Parts<'a, 'b> {
    /// Starts building replacements for `node`.
    pub(crate) fn new(edit: &'a mut Edit<'b>, node: &'a Node) -> Self {
        Self {
            edit,
            node,
            made: Vec::new(),
        }
    }

    pub fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// True if result `i` is read or is an output of the model.
    pub fn is_read(&self, i: usize) -> bool {
        self.node
            .outputs
            .get(i)
            .is_some_and(|v| self.edit.is_kept(*v) || self.edit.readers(*v).next().is_some())
    }

    /// Operand `i`, if it is given.
    pub fn opt(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// Operand `i`; an error if it is omitted.
    pub fn input(&self, i: usize) -> OpResult<ValueId> {
        self.opt(i)
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "none"))
    }

    /// The fact of a value.
    pub fn fact(&self, v: ValueId) -> OpResult<Fact> {
        let fact = self.edit.value(v).fact.clone();
        fact.ok_or_else(|| OpError::expected("shape", "derived", "unknown"))
    }

    /// Adds a node and returns its first result. `what` is appended to the name of the replaced
    /// node.
    pub fn node(
        &mut self,
        what: &str,
        op: impl Op + 'static,
        inputs: &[Option<ValueId>],
    ) -> OpResult<ValueId> {
        self.boxed(what, Box::new(op), inputs)
    }

    /// Like [`Parts::node`], for an operator whose type is not known.
    pub fn boxed(&mut self, what: &str, op: Box<dyn Op>, inputs: &[Option<ValueId>]) -> OpResult<ValueId> {
        let [y] = self.results(what, op, inputs)?;
        Ok(y)
    }

    /// Like [`Parts::boxed`], for the first `N` results.
    pub fn results<const N: usize>(
        &mut self,
        what: &str,
        op: Box<dyn Op>,
        inputs: &[Option<ValueId>],
    ) -> OpResult<[ValueId; N]> {
        let name = format!("{}/{what}", self.node.name);
        let facts: Vec<Option<&Fact>> = inputs
            .iter()
            .map(|v| v.and_then(|v| self.edit.value(v).fact.as_ref()))
            .collect();
        let mut found = op.infer(&InferCx::new(&facts, self.edit.constraints()))?;
        derive::follow(op.as_ref(), &facts, &mut found)?;
        let mut facts = found.into_iter();
        let results = [(); N].map(|()| self.edit.add_value(&name, facts.next()));
        let origin = self.node.origin.clone();
        let id = self
            .edit
            .add_node(&name, origin, op, inputs.to_vec(), results.to_vec());
        self.made.push(id);
        Ok(results)
    }

    /// Adds an elementwise expression over values.
    pub fn pointwise(&mut self, what: &str, expr: Expr, inputs: &[ValueId]) -> OpResult<ValueId> {
        let op = Pointwise {
            name: what.to_owned(),
            expr,
        };
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        self.node(what, op, &inputs)
    }

    /// Adds the nodes of a subgraph of the operator, run once on the values `given`, and returns
    /// its results.
    pub fn inline(&mut self, what: &str, body: &Body, given: &[ValueId]) -> OpResult<Vec<ValueId>> {
        let facts = |list: &[ValueId]| list.iter().map(|v| self.fact(*v)).collect::<OpResult<Vec<_>>>();
        let (own, given_facts) = (facts(&self.operands())?, facts(given)?);
        let mut own = own.iter();
        let operands: Vec<Option<&Fact>> = self
            .node
            .inputs
            .iter()
            .map(|v| v.and_then(|_| own.next()))
            .collect();
        let graph = body.derived(&InferCx::new(&operands, self.edit.constraints()), &given_facts)?;
        let outer = num::part(&self.node.inputs, body.outer())?;
        let values: Vec<ValueId> = given
            .iter()
            .copied()
            .chain(outer.iter().copied().flatten())
            .collect();
        let name = format!("{}/{what}", self.node.name);
        let copied = self.edit.copy(&name, &graph, &values);
        let (results, new) = copied.map_err(OpError::from)?;
        self.made.extend(new);
        Ok(results)
    }

    fn operands(&self) -> Vec<ValueId> {
        self.node.inputs.iter().copied().flatten().collect()
    }

    pub fn constant(&mut self, what: &str, tensor: HostTensor) -> ValueId {
        let name = format!("{}/{what}", self.node.name);
        self.edit.add_const(&name, Arc::new(tensor))
    }

    /// Adds a constant list of integers.
    pub fn ints(&mut self, what: &str, list: &[i64]) -> OpResult<ValueId> {
        Ok(self.constant(what, HostTensor::from_i64(&[list.len()], list)?))
    }

    /// Adds a `Reshape` of `x`; in `shape`, 0 keeps a size and -1 is inferred.
    pub fn reshape(&mut self, what: &str, x: ValueId, shape: &[i64]) -> OpResult<ValueId> {
        let list = self.ints(&format!("{what}/shape"), shape)?;
        self.node(
            what,
            Reshape::Reshape { allow_zero: false },
            &[Some(x), Some(list)],
        )
    }

    /// Inserts axes of size 1 into `x`; `axes` are positions in the result.
    pub fn unsqueeze(&mut self, what: &str, x: ValueId, axes: &[i64]) -> OpResult<ValueId> {
        let list = self.ints(&format!("{what}/axes"), axes)?;
        self.node(what, Reshape::Unsqueeze, &[Some(x), Some(list)])
    }

    /// Elements of an axis.
    pub fn slice(&mut self, what: &str, x: ValueId, axis: i64, range: Range<i64>) -> OpResult<ValueId> {
        let mut operands = vec![Some(x)];
        for (name, v) in [("start", range.start), ("end", range.end), ("axis", axis)] {
            operands.push(Some(self.ints(&format!("{what}/{name}"), &[v])?));
        }
        self.node(what, Slice, &operands)
    }

    /// Entry `i` of an axis, without that axis.
    pub fn entry(&mut self, what: &str, x: ValueId, axis: i64, i: usize) -> OpResult<ValueId> {
        let at = HostTensor::from_i64(&[], &[num::signed(i)])?;
        let at = self.constant(&format!("{what}/at"), at);
        self.node(what, Gather { axis }, &[Some(x), Some(at)])
    }

    /// The size of an axis, as a list of one number.
    pub fn size(&mut self, what: &str, x: ValueId, axis: i64) -> OpResult<ValueId> {
        let op = ShapeOf {
            start: axis,
            end: Some(axis + 1),
        };
        self.node(what, op, &[Some(x)])
    }

    /// The integers from `start` to before `end`; both are numbers or lists of one.
    pub fn range(&mut self, what: &str, start: ValueId, end: ValueId) -> OpResult<ValueId> {
        let step = self.ints(&format!("{what}/step"), &[1])?;
        self.node(what, op_range::Range, &[Some(start), Some(end), Some(step)])
    }

    /// The integers from 0 to before `end`.
    pub fn count_to(&mut self, what: &str, end: ValueId) -> OpResult<ValueId> {
        let zero = self.ints(&format!("{what}/zero"), &[0])?;
        self.range(what, zero, end)
    }

    /// Removes the nodes that were built, for a node that stays.
    pub(crate) fn discard(self) {
        for id in self.made {
            self.edit.remove_node(id);
        }
    }

    /// Replaces node `id` by the new nodes; its results become `results`, and any further results
    /// must be unused. Returns the new nodes; empty if the limit on rewrites is reached.
    pub(crate) fn finish(mut self, id: NodeId, results: &[ValueId]) -> Vec<NodeId> {
        let what = format!("\"{}\" becomes {} nodes", self.node.name, self.made.len());
        if !self.edit.begin(&what) {
            return Vec::new();
        }
        self.edit.remove_node(id);
        for (from, to) in results.iter().zip(&self.node.outputs) {
            let alone = |g: &Edit<'_>| {
                let own = g
                    .producer(*from)
                    .filter(|(p, n)| self.made.contains(p) && n.outputs.len() == 1);
                let once = results.iter().filter(|r| *r == from).count() == 1;
                let read = g.readers(*from).next().is_some();
                own.filter(|_| once && !read).map(|(p, n)| (p, n.clone()))
            };
            let (node, old) = match alone(self.edit) {
                Some((p, node)) => (node, Some(p)),
                None => {
                    let node = Node {
                        name: format!("{}/result", self.node.name),
                        origin: self.node.origin.clone(),
                        op: Box::new(Reshape::Identity),
                        inputs: vec![Some(*from)],
                        outputs: Vec::new(),
                    };
                    (node, None)
                }
            };
            if let Some(p) = old {
                self.edit.remove_node(p);
            }
            let new = self
                .edit
                .add_node(&node.name, node.origin, node.op, node.inputs, vec![*to]);
            self.made.push(new);
        }
        self.made
    }
}
