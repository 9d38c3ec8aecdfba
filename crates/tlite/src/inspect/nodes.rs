//! Operators of the model, nodes after the passes, and how they correspond.

use super::plans::PlanReport;
use super::{ValueReport, value_report};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::graph::class::Class;
use transformer_lite::unstable::graph::onnx::describe::Description;
use transformer_lite::unstable::graph::{Graph, Node, NodeId};
use transformer_lite::unstable::plan::Plan;

/// What became of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// It is a node of the plan, unchanged.
    Kept,
    /// Another operator replaced it.
    Rewritten,
    /// It is part of a fused node.
    Fused,
    /// Its results are known from shapes and constants.
    Folded,
    /// Nothing needs it.
    Removed,
}

/// What became of an operator, and its nodes.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Becomes {
    /// What became of it.
    pub how: How,
    /// Indices into the list `nodes` of the report.
    pub nodes: Vec<usize>,
}

/// An operator of the model.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Operator {
    /// Its name.
    pub name: String,
    /// Its type.
    pub op: String,
    /// Whether it computes tensors or shapes.
    pub class: Class,
    /// Attributes as in the file: numbers, text, or lists of these; large tensors by their shape.
    pub attributes: Map<String, Value>,
    /// Operands; `None` for an omitted optional one.
    pub inputs: Vec<Option<ValueReport>>,
    /// Results.
    pub outputs: Vec<ValueReport>,
    /// What the passes made of it.
    pub becomes: Becomes,
}

/// Steps of one plan.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct Run {
    /// Name of the plan.
    pub plan: &'static str,
    /// Indices into the list `steps` of the plan.
    pub steps: Vec<usize>,
}

/// A node after the passes.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its type.
    pub op: String,
    /// Names of the model's operators that it computes.
    pub origin: Vec<String>,
    /// Operands; `None` for an omitted optional one.
    pub inputs: Vec<Option<ValueReport>>,
    /// Results.
    pub outputs: Vec<ValueReport>,
    /// Its steps in each plan.
    pub runs: Vec<Run>,
    /// Why nothing runs for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nothing: Option<&'static str>,
}

fn operands(graph: &Graph, node: &Node) -> (Vec<Option<ValueReport>>, Vec<ValueReport>) {
    let inputs = node.inputs.iter().map(|v| v.map(|v| value_report(graph, v)));
    let outputs = node.outputs.iter().map(|v| value_report(graph, *v));
    (inputs.collect(), outputs.collect())
}

fn is_known(graph: &Graph, node: &Node) -> bool {
    let known = |v| {
        let fact = graph.value(v).fact.as_ref();
        fact.is_some_and(|f| f.as_const().is_some() || f.as_dims().is_some())
    };
    node.outputs.iter().all(|v| known(*v))
}

/// The nodes of the planned `graph`.
pub(super) fn nodes(graph: &Graph, plans: &[Plan], reports: &[PlanReport]) -> Result<Vec<NodeReport>> {
    // Positions of dispatches among all steps of a plan, by node.
    let mut runs: HashMap<NodeId, Vec<Run>> = HashMap::new();
    let mut on_host: HashMap<&str, Vec<Run>> = HashMap::new();
    for (plan, report) in plans.iter().zip(reports) {
        let mut dispatches = plan.steps.iter();
        for (at, step) in report.steps.iter().enumerate() {
            let all = if step.place == "host" {
                on_host.entry(&step.node).or_default()
            } else if let Some(s) = dispatches.next() {
                runs.entry(s.node).or_default()
            } else {
                continue;
            };
            match all.last_mut() {
                Some(r) if r.plan == report.name => r.steps.push(at),
                _ => all.push(Run {
                    plan: report.name,
                    steps: vec![at],
                }),
            }
        }
    }
    let mut out = Vec::new();
    for id in graph.order()? {
        let Some(node) = graph.node(id) else { continue };
        let (inputs, outputs) = operands(graph, node);
        let mut all = runs.remove(&id).unwrap_or_default();
        let names = std::iter::once(node.name.as_str()).chain(outputs.iter().map(|v| v.name.as_str()));
        for name in names {
            for run in on_host.get(name).into_iter().flatten() {
                match all.iter_mut().find(|r| r.plan == run.plan) {
                    Some(r) if r.steps.contains(&run.steps[0]) => {}
                    Some(r) => r.steps.extend(&run.steps),
                    None => all.push(run.clone()),
                }
            }
        }
        let nothing = all.is_empty().then(|| {
            if is_known(graph, node) {
                "its results are known from the shapes"
            } else {
                "its result is the bytes of an operand, or nothing needs it"
            }
        });
        out.push(NodeReport {
            name: node.name.clone(),
            op: node.op.name().to_owned(),
            origin: node.origin.clone(),
            inputs,
            outputs,
            runs: all,
            nothing,
        });
    }
    Ok(out)
}

/// The operators of `graph` as imported, with derived facts.
pub(super) fn operators(
    graph: &Graph,
    classes: &HashMap<NodeId, Class>,
    nodes: &[NodeReport],
    file: &Description,
) -> Result<Vec<Operator>> {
    let mut by_origin: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        for name in &n.origin {
            by_origin.entry(name).or_default().push(i);
        }
    }
    let mut out: Vec<Operator> = Vec::new();
    for id in graph.order()? {
        let Some(node) = graph.node(id) else { continue };
        let (inputs, outputs) = operands(graph, node);
        let at = by_origin.get(node.name.as_str()).cloned().unwrap_or_default();
        let found: Vec<&NodeReport> = at.iter().filter_map(|i| nodes.get(*i)).collect();
        let how = match found.as_slice() {
            [] if is_known(graph, node) => How::Folded,
            [] => How::Removed,
            [n] if n.origin.len() > 1 => How::Fused,
            [n] if n.op == node.op.name() && n.runs.is_empty() && is_known(graph, node) => How::Folded,
            [n] if n.op == node.op.name() => How::Kept,
            [_] => How::Rewritten,
            many if many.iter().any(|n| n.origin.len() > 1) => How::Fused,
            _ => How::Rewritten,
        };
        out.push(Operator {
            name: node.name.clone(),
            op: node.op.name().to_owned(),
            class: classes.get(&id).copied().unwrap_or(Class::Tensor),
            attributes: outputs
                .first()
                .map(|v| file.attributes(&v.name))
                .unwrap_or_default(),
            inputs,
            outputs,
            becomes: Becomes { how, nodes: at },
        });
    }
    absorb(&mut out, nodes);
    Ok(out)
}

/// An operator without a node is part of the node that now computes its result, or of one that read
/// it.
fn absorb(operators: &mut [Operator], nodes: &[NodeReport]) {
    const MAX_NODES: usize = 4;
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        makers.extend(n.outputs.iter().map(|v| (v.name.as_str(), i)));
    }
    // For each value the nodes that its readers became.
    let mut readers: HashMap<String, Vec<usize>> = HashMap::new();
    for o in operators.iter_mut().rev() {
        if o.becomes.how == How::Removed {
            let made = o
                .outputs
                .iter()
                .filter_map(|v| makers.get(v.name.as_str()).copied());
            let read = o
                .outputs
                .iter()
                .filter_map(|v| readers.get(&v.name))
                .flatten()
                .copied();
            let mut found: Vec<usize> = made.collect();
            if found.is_empty() {
                found.extend(read);
            }
            found.sort_unstable();
            found.dedup();
            found.truncate(MAX_NODES);
            if !found.is_empty() {
                o.becomes = Becomes {
                    how: How::Fused,
                    nodes: found,
                };
            }
        }
        if o.becomes.how != How::Folded {
            for v in o.inputs.iter().flatten() {
                let all = readers.entry(v.name.clone()).or_default();
                all.extend(o.becomes.nodes.iter().take(MAX_NODES));
            }
        }
    }
}
