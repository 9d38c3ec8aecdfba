//! Operators as graphs of others: what [`super::Op::parts`] makes nodes with.

use super::pointwise::{Expr, Pointwise};
use super::reshape::Reshape;
use super::{InferCx, Op, OpError, OpResult};
use crate::graph::body::Body;
use crate::graph::{Edit, Node, NodeId, ValueId};
use crate::shape::Fact;
use crate::tensor::HostTensor;
use std::sync::Arc;

/// A node that becomes others. What was made for a node that stays is taken back.
#[derive(Debug)]
pub struct Parts<'a, 'b> {
    edit: &'a mut Edit<'b>,
    node: &'a Node,
    made: Vec<NodeId>,
}

impl<'a, 'b> Parts<'a, 'b> {
    /// Begins to make parts of `node`.
    pub(crate) fn new(edit: &'a mut Edit<'b>, node: &'a Node) -> Self {
        Self {
            edit,
            node,
            made: Vec::new(),
        }
    }

    /// Number of results.
    pub fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// Something reads result `i`, or it is an output of the model.
    pub fn is_read(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(|v| {
            self.edit.is_kept(*v) || self.edit.nodes().any(|(_, n)| n.inputs.contains(&Some(*v)))
        })
    }

    /// Operand `i`, if it is given.
    pub fn opt(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// Operand `i`, which must be given.
    pub fn input(&self, i: usize) -> OpResult<ValueId> {
        self.opt(i)
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "nothing"))
    }

    /// The operator that computes a value, if it is a `T`, and its operands.
    pub fn producer<T: 'static>(&self, v: ValueId) -> Option<(&T, &[Option<ValueId>])> {
        let (_, node) = self.edit.producer(v)?;
        Some((node.op.downcast::<T>()?, &node.inputs))
    }

    /// What is known of a value.
    pub fn fact(&self, v: ValueId) -> OpResult<Fact> {
        let fact = self.edit.value(v).fact.clone();
        fact.ok_or_else(|| OpError::expected("shape", "derived", "unknown"))
    }

    /// A new node, called `what` behind the name of the one that it is part of; its first result.
    pub fn node(
        &mut self,
        what: &str,
        op: impl Op + 'static,
        inputs: &[Option<ValueId>],
    ) -> OpResult<ValueId> {
        let name = format!("{}/{what}", self.node.name);
        let facts: Vec<Option<&Fact>> = inputs
            .iter()
            .map(|v| v.and_then(|v| self.edit.value(v).fact.as_ref()))
            .collect();
        let fact = op
            .infer(&InferCx::new(&facts, self.edit.constraints()))?
            .into_iter()
            .next();
        let y = self.edit.add_value(&name, fact);
        let id = self.edit.add_node(
            &name,
            self.node.origin.clone(),
            Box::new(op),
            inputs.to_vec(),
            vec![y],
        );
        self.made.push(id);
        Ok(y)
    }

    /// An elementwise expression over values.
    pub fn pointwise(&mut self, what: &str, expr: Expr, inputs: &[ValueId]) -> OpResult<ValueId> {
        let op = Pointwise {
            name: what.to_owned(),
            expr,
        };
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        self.node(what, op, &inputs)
    }

    /// The nodes of a graph of the operator for these values; its results. The graph runs once.
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
        let outer = self.node.inputs.get(body.outer()).unwrap_or_default();
        let values: Vec<ValueId> = given
            .iter()
            .copied()
            .chain(outer.iter().copied().flatten())
            .collect();
        let name = format!("{}/{what}", self.node.name);
        let copied = self.edit.copy(&name, &graph, &values);
        let (results, new) = copied.map_err(|e| OpError::Body(e.chain()))?;
        self.made.extend(new);
        Ok(results)
    }

    /// Operands that are given.
    fn operands(&self) -> Vec<ValueId> {
        self.node.inputs.iter().copied().flatten().collect()
    }

    /// A constant.
    pub fn constant(&mut self, what: &str, tensor: HostTensor) -> ValueId {
        let name = format!("{}/{what}", self.node.name);
        self.edit.add_const(&name, Arc::new(tensor))
    }

    /// A constant list of integers.
    pub fn ints(&mut self, what: &str, list: &[i64]) -> OpResult<ValueId> {
        Ok(self.constant(what, HostTensor::from_i64(&[list.len()], list)?))
    }

    /// `x` under another shape, as ONNX `Reshape` writes it: 0 keeps a size, -1 is what remains.
    pub fn reshape(&mut self, what: &str, x: ValueId, shape: &[i64]) -> OpResult<ValueId> {
        let list = self.ints(&format!("{what}/shape"), shape)?;
        self.node(
            what,
            Reshape::Reshape { allow_zero: false },
            &[Some(x), Some(list)],
        )
    }

    /// `x` with axes of size 1 more, at these places of the result.
    pub fn unsqueeze(&mut self, what: &str, x: ValueId, axes: &[i64]) -> OpResult<ValueId> {
        let list = self.ints(&format!("{what}/axes"), axes)?;
        self.node(what, Reshape::Unsqueeze, &[Some(x), Some(list)])
    }

    /// Takes back what was made for a node that stays.
    pub(crate) fn discard(self) {
        for id in self.made {
            self.edit.remove_node(id);
        }
    }

    /// Puts the parts in the place of node `id`, whose results become `results`; those beyond must be read by nothing. Returned are the
    /// new nodes; none where no rewrite is allowed any more.
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
                let read = g.nodes().any(|(_, n)| n.inputs.contains(&Some(*from)));
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
