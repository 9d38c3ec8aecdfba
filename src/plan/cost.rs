//! Computes the cost of a plan at given lengths: bytes read and written by its commands, and
//! arithmetic of its nodes. Everything follows from the plan; nothing is measured.
//!
//! Bytes are those of operands as stored on the device, counted once per command that reads or
//! writes them, ignoring caches. Weights, caches and tables count as [`Op::elements_read`] says, a
//! cache being appended to counts its new rows, and scratch memory counts in full. Arithmetic is
//! that of [`Op::flops`], whatever kernels a node uses. Lengths are exact, not padded. Nodes on the
//! host are not counted.

use super::arena::Arena;
use super::compile::Compiler;
use super::{Plan, Step, Storage, dim_error};
use crate::backend::kernel::{Feature, KernelSpec, Language, Role};
use crate::error::{Error, Result, Stage};
use crate::graph::op::sizes::{Sizes, elements};
use crate::graph::{NodeId, Op, ValueId};
use crate::lower::Location;
use crate::num;
use crate::shape::{Bindings, Dim, Shape};
use std::collections::HashMap;

/// The kind of arithmetic that computes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// Single precision.
    F32,
    /// Halves, accumulated in single precision by tensor cores or cooperative matrices.
    #[serde(rename = "tensor cores")]
    TensorCores,
    /// Halves, in short chains that are accumulated in single precision.
    F16,
    /// 8-bit integers, accumulated in 32-bit integers.
    #[serde(rename = "int8")]
    Bytes,
    /// 16-bit integers times 8-bit ones, as two products of bytes each.
    Int16,
}

/// Cost of a command of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandCost {
    /// Index into [`Plan::steps`].
    pub step: usize,
    pub read: u64,
    pub written: u64,
}

/// Cost of a node of the planned graph that runs on kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCost {
    pub node: NodeId,
    pub name: String,
    pub op: String,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    pub commands: Vec<CommandCost>,
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    pub arithmetic: Arithmetic,
}

impl NodeCost {
    /// Bytes that its commands read.
    pub fn read(&self) -> u64 {
        self.commands.iter().fold(0, |n, c| n.saturating_add(c.read))
    }

    /// Bytes that its commands write.
    pub fn written(&self) -> u64 {
        self.commands.iter().fold(0, |n, c| n.saturating_add(c.written))
    }
}

/// An operand or a result of a node.
#[derive(Clone, Debug)]
struct NodeOperand {
    /// The value that owns its bytes.
    root: ValueId,
    shape: Shape,
    /// Its tensor, by index into [`Plan::tensors`].
    tensor: Option<usize>,
}

#[derive(Clone, Debug)]
struct NodeWork {
    node: NodeId,
    name: String,
    origin: Vec<String>,
    op: Box<dyn Op>,
    inputs: Vec<Option<NodeOperand>>,
    outputs: Vec<NodeOperand>,
    steps: Vec<usize>,
    arithmetic: Arithmetic,
}

/// The parts of the graph that a plan keeps to compute costs.
#[derive(Clone, Debug)]
pub(super) struct PlanWork {
    nodes: Vec<NodeWork>,
    /// For each packed constant its bytes, and the values that it contains.
    weights: Vec<(u64, Vec<ValueId>)>,
    /// For each state, its values before and after a run.
    states: Vec<(ValueId, ValueId)>,
}

impl PlanWork {
    /// Collects the work of the steps; their kernels are those of `kernels`.
    pub fn new(c: &Compiler<'_>, arena: &Arena, steps: &[Step], kernels: &[KernelSpec]) -> Self {
        // Native kernels declare the same features for all languages.
        let language = c.caps.profile.language().unwrap_or(Language::OpenClC);
        let operand = |v: ValueId| {
            let root = c.collected.root(v);
            let tensor = match arena.storage_of(Location::Value(root)) {
                Some(Storage::Arena { tensor, .. }) => Some(tensor),
                _ => None,
            };
            let shape = c.fact(v).map(|f| f.shape.clone()).unwrap_or_default();
            NodeOperand { root, shape, tensor }
        };
        let mut nodes: Vec<NodeWork> = Vec::new();
        let mut index: HashMap<NodeId, usize> = HashMap::new();
        for (at, step) in steps.iter().enumerate() {
            let spec = kernels.get(step.kernel);
            let uses = |feature| spec.is_some_and(|spec| spec.uses(language, feature));
            let planes = spec.and_then(|spec| spec.defines.get(crate::kernels::product_e0m::PLANES));
            let known = index.get(&step.node).and_then(|i| nodes.get_mut(*i));
            let work = match (known, c.graph.node(step.node)) {
                (Some(work), _) => work,
                (None, None) => continue,
                (None, Some(node)) => {
                    index.insert(step.node, nodes.len());
                    nodes.push(NodeWork {
                        node: step.node,
                        name: node.name.clone(),
                        origin: step.nodes.clone(),
                        op: node.op.clone(),
                        inputs: node.inputs.iter().map(|v| v.map(operand)).collect(),
                        outputs: node.outputs.iter().copied().map(operand).collect(),
                        steps: Vec::new(),
                        arithmetic: Arithmetic::F32,
                    });
                    let Some(last) = nodes.last_mut() else { continue };
                    last
                }
            };
            work.steps.push(at);
            if uses(Feature::TensorCores) {
                work.arithmetic = Arithmetic::TensorCores;
            } else if uses(Feature::PackedDot) {
                work.arithmetic = match planes {
                    Some(2) => Arithmetic::Int16,
                    _ => Arithmetic::Bytes,
                };
            } else if uses(Feature::F16) {
                work.arithmetic = Arithmetic::F16;
            }
        }
        let weights = c.collected.weights.iter();
        let states = c.graph.states().iter();
        Self {
            nodes,
            weights: weights
                .map(|w| (w.bytes(c.graph).unwrap_or(u64::MAX), w.values.clone()))
                .collect(),
            states: states.map(|s| (s.input, s.output)).collect(),
        }
    }
}

/// The share of `part` in `whole`, applied to `bytes`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let exact = u128::from(bytes) * u128::from(part.min(whole)) / u128::from(whole.max(1));
    num::saturating(exact)
}

/// A node at given lengths.
struct NodeRun<'a> {
    plan: &'a Plan,
    node: &'a NodeWork,
    sizes: Sizes,
    bindings: &'a Bindings,
}

impl NodeRun<'_> {
    /// The operand with this property: how many of its elements are read, and how many it has.
    fn read_of(&self, is: impl Fn(&NodeOperand) -> bool) -> Option<(u64, u64)> {
        let mut all = self.node.inputs.iter().enumerate();
        let i = all.find_map(|(i, o)| o.as_ref().is_some_and(&is).then_some(i))?;
        let all = self.sizes.input_elements(i);
        Some((self.node.op.elements_read(i, &self.sizes).min(all), all))
    }

    fn tensor_bytes(&self, tensor: usize) -> Result<u64> {
        let Some(t) = self.plan.tensors.get(tensor) else {
            return Ok(0);
        };
        number(&t.size, self.bindings)
    }

    /// Bytes of a state that are read, or written if the node appends to it.
    fn state_bytes(&self, state: usize) -> (u64, u64) {
        let (Some((before, after)), Some(slot)) =
            (self.plan.work.states.get(state), self.plan.states.get(state))
        else {
            return (0, 0);
        };
        let size = slot.dtype.size() as u64;
        let mut results = self.node.outputs.iter().zip(&self.sizes.outputs);
        if let Some((_, shape)) = results.find(|(o, _)| o.root == *after) {
            let past = self.read_of(|o| o.root == *before).map_or(0, |(_, all)| all);
            return (0, elements(shape).saturating_sub(past).saturating_mul(size));
        }
        let read = self.read_of(|o| o.root == *before || o.root == *after);
        let read = read.map_or(0, |(read, _)| read.saturating_mul(size));
        (read.min(slot.bytes), 0)
    }

    fn command(&self, at: usize) -> Result<CommandCost> {
        let mut cost = CommandCost {
            step: at,
            read: 0,
            written: 0,
        };
        let parts = self
            .plan
            .steps
            .get(at)
            .and_then(|s| Some((s, self.plan.kernels.get(s.kernel)?)));
        let Some((step, spec)) = parts else {
            return Ok(cost);
        };
        let shared = spec.shared().map(|a| a.name);
        for ((arg, _), storage) in spec.bound().zip(&step.args) {
            let (mut read, mut written) = (0, 0);
            match storage {
                Storage::Weight(i) => {
                    if let Some((bytes, values)) = self.plan.work.weights.get(*i) {
                        let of = self.read_of(|o| values.contains(&o.root));
                        read = of.map_or(*bytes, |(part, whole)| share(*bytes, part, whole));
                    }
                }
                Storage::State(i) => (read, written) = self.state_bytes(*i),
                Storage::Live | Storage::Counters | Storage::Fault => {}
                Storage::Known { len, .. } => read = *len,
                Storage::Arena { tensor, .. } => {
                    let bytes = self.tensor_bytes(*tensor)?;
                    match arg.role {
                        Role::In | Role::OptionalIn | Role::Weight | Role::OptionalWeight => {
                            let of = self.read_of(|o| o.tensor == Some(*tensor));
                            read = of.map_or(bytes, |(part, whole)| share(bytes, part, whole));
                            if shared == Some(arg.name) {
                                written = bytes;
                            }
                        }
                        Role::Out => written = bytes,
                        // Commands that write parts of one result share it.
                        Role::PartialOut | Role::InOut | Role::OptionalInOut => {
                            written = bytes / self.writers(*tensor).max(1);
                        }
                    }
                }
            }
            cost.read = cost.read.saturating_add(read);
            cost.written = cost.written.saturating_add(written);
        }
        Ok(cost)
    }

    /// Number of the node's commands with the tensor as an operand.
    fn writers(&self, wanted: usize) -> u64 {
        let steps = self.node.steps.iter().filter_map(|s| self.plan.steps.get(*s));
        let has = |p: &Storage| matches!(p, Storage::Arena { tensor, .. } if *tensor == wanted);
        steps.filter(|s| s.args.iter().any(has)).count() as u64
    }
}

fn number(dim: &Dim, bindings: &Bindings) -> Result<u64> {
    let value = dim.eval(bindings).map_err(|e| dim_error(&e))?;
    u64::try_from(value).map_err(|_| {
        Error::other(
            Stage::Plan,
            format!("{dim} is {value}: a size cannot be negative"),
        )
    })
}

fn shape(of: &NodeOperand, bindings: &Bindings) -> Result<Vec<u64>> {
    of.shape.0.iter().map(|d| number(d, bindings)).collect()
}

impl Plan {
    /// The cost of a run with these values of the symbols, node by node in plan order.
    ///
    /// # Errors
    ///
    /// A symbol without a value (including one that data defines), or a negative size.
    pub fn costs(&self, bindings: &Bindings) -> Result<Vec<NodeCost>> {
        let mut all = bindings.clone();
        for (symbol, value) in self.fixed.iter() {
            all.set(symbol, value);
        }
        let mut costs = Vec::with_capacity(self.work.nodes.len());
        for node in &self.work.nodes {
            let inputs = node.inputs.iter();
            let sizes = Sizes {
                inputs: inputs
                    .map(|o| o.as_ref().map(|o| shape(o, &all)).transpose())
                    .collect::<Result<_>>()?,
                outputs: node
                    .outputs
                    .iter()
                    .map(|o| shape(o, &all))
                    .collect::<Result<_>>()?,
            };
            let flops = node.op.flops(&sizes);
            let run = NodeRun {
                plan: self,
                node,
                sizes,
                bindings: &all,
            };
            costs.push(NodeCost {
                node: node.node,
                name: node.name.clone(),
                op: node.op.name().to_owned(),
                nodes: node.origin.clone(),
                commands: node
                    .steps
                    .iter()
                    .map(|s| run.command(*s))
                    .collect::<Result<_>>()?,
                flops,
                arithmetic: node.arithmetic,
            });
        }
        Ok(costs)
    }
}
