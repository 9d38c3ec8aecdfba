//! Replaces an `If` whose condition is known by the nodes of the chosen branch.

use crate::error::{Result, Stage};
use crate::graph::op::if_else::{If, decided};
use crate::graph::op::reshape::Reshape;
use crate::graph::op::{InferCx, OpResult};
use crate::graph::pass::Pass;
use crate::graph::{Edit, Graph, Node, NodeId, ValueId};
use crate::num;
use crate::shape::Fact;

pub const INLINE_IF: Pass = Pass {
    name: "inline_if",
    does: "replaces an `If` whose condition is known by the chosen branch",
    refuses: "a condition that depends on the run",
    run,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let mut work: Vec<NodeId> = edit.nodes().filter(|(_, n)| is_if(n)).map(|(id, _)| id).collect();
    while let Some(id) = work.pop() {
        let Some(node) = edit.node(id).cloned() else {
            continue;
        };
        let branch = branch(edit, &node).map_err(|e| edit.node_error(Stage::Pass, &node, e))?;
        let Some((holds, branch, outer)) = branch else {
            log::debug!(
                "\"{}\" is not inlined: its condition depends on the run",
                node.name
            );
            continue;
        };
        if !edit.begin(&format!("the condition of \"{}\" is {holds}", node.name)) {
            return Ok(());
        }
        work.extend(inline(edit, id, &node, &branch, &outer)?);
    }
    Ok(())
}

fn is_if(node: &Node) -> bool {
    node.op.downcast::<If>().is_some()
}

/// The known condition, its branch with derived facts, and the operands that are the branch's
/// inputs.
fn branch(g: &Graph, node: &Node) -> OpResult<Option<(bool, Graph, Vec<ValueId>)>> {
    let Some(op) = node.op.downcast::<If>() else {
        return Ok(None);
    };
    let facts: Vec<Option<&Fact>> = node
        .inputs
        .iter()
        .map(|v| v.and_then(|v| g.value(v).fact.as_ref()))
        .collect();
    let Some(holds) = facts.first().copied().flatten().and_then(decided) else {
        return Ok(None);
    };
    let body = op.branch(holds);
    let graph = body.derived(&InferCx::new(&facts, g.constraints()), &[])?;
    let outer = num::part(&node.inputs, body.outer())?;
    Ok(Some((holds, graph, outer.iter().flatten().copied().collect())))
}

/// Copies a branch and connects its results to the values of the node. Returns the copied nodes
/// that are branches themselves.
fn inline(
    edit: &mut Edit<'_>,
    id: NodeId,
    node: &Node,
    branch: &Graph,
    outer: &[ValueId],
) -> Result<Vec<NodeId>> {
    let (results, new) = edit.copy(&node.name, branch, outer)?;
    let nested = new
        .into_iter()
        .filter(|id| edit.node(*id).is_some_and(is_if))
        .collect();
    edit.remove_node(id);
    for (i, (from, to)) in results.into_iter().zip(&node.outputs).enumerate() {
        let name = format!("{}/result{i}", node.name);
        edit.add_node(
            &name,
            node.origin.clone(),
            Box::new(Reshape::Identity),
            vec![Some(from)],
            vec![*to],
        );
    }
    Ok(nested)
}

#[cfg(test)]
mod tests {
    use crate::graph::body::Body;
    use crate::graph::op::if_else::If;
    use crate::graph::op::pointwise::{Binary, Pointwise};
    use crate::graph::pass::{INLINE_IF, Pipeline};
    use crate::graph::{Edit, Graph, text};
    use crate::shape::{Dim, Fact, Shape};
    use crate::tensor::{DType, HostTensor};
    use std::sync::Arc;

    /// A branch that combines its only input with itself.
    fn branch(f: Binary, operand: usize) -> Body {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let (x, y) = (edit.add_value("x", None), edit.add_value("y", None));
        edit.add_input(x);
        edit.add_node(
            "inner",
            vec!["inner".into()],
            Box::new(Pointwise::binary("f", f)),
            vec![Some(x); 2],
            vec![y],
        );
        edit.add_output(y);
        Body::new(graph, operand..operand + 1).unwrap()
    }

    /// The text of an `If` over `x [s]` after the pass. Without a condition that is an input.
    fn after(condition: Option<bool>) -> String {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape(vec![Dim::symbol("s")]))));
        edit.add_input(x);
        let c = match condition {
            Some(v) => edit.add_const("c", Arc::new(HostTensor::from_bool(&[], &[v]).unwrap())),
            None => {
                let c = edit.add_value("c", Some(Fact::new(DType::Bool, Shape::default())));
                edit.add_input(c);
                c
            }
        };
        let y = edit.add_value("y", None);
        let op = If {
            then: branch(Binary::Add, 1),
            otherwise: branch(Binary::Mul, 2),
        };
        edit.add_node(
            "if",
            vec!["if".into()],
            Box::new(op),
            vec![Some(c), Some(x), Some(x)],
            vec![y],
        );
        edit.add_output(y);
        Pipeline {
            passes: vec![INLINE_IF],
            edit_limit: usize::MAX,
        }
        .run(&mut graph)
        .unwrap();
        text::print(&graph).unwrap()
    }

    #[test]
    fn a_known_condition_leaves_its_branch() {
        let (yes, no) = (after(Some(true)), after(Some(false)));
        assert!(yes.contains("Binary(Add") && !yes.contains("= If"), "{yes}");
        assert!(
            no.contains("Binary(Mul") && no.contains("output y: f32[s]"),
            "{no}"
        );
    }

    #[test]
    fn an_unknown_condition_stays() {
        let text = after(None);
        assert!(text.contains("y: f32[s] = If"), "{text}");
    }
}
