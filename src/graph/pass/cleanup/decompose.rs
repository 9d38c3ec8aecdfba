//! Replaces operators by the nodes that [`Op::parts`](crate::graph::op::Op::parts) builds. On the
//! host only operators that keep a cache are replaced: the cache then becomes an operand of a
//! `Concat`, as in other models.

use crate::error::{Result, Stage};
use crate::graph::op::OpError;
use crate::graph::op::parts::Parts;
use crate::graph::pass::Pass;
use crate::graph::{Edit, Graph, Node, NodeId};

pub const DECOMPOSE: Pass = Pass {
    name: "decompose",
    does: "replaces operators by their parts; unrolls loops",
    refuses: "run-time sizes where parts need numbers",
    run,
};

pub const CACHES: Pass = Pass {
    name: "caches",
    does: "replaces operators that keep a cache by their parts",
    refuses: "run-time sizes where parts need numbers",
    run: caches,
};

fn run(edit: &mut Edit<'_>) -> Result<()> {
    let work = edit.nodes().map(|(id, _)| id).collect();
    decompose(edit, work, true)
}

/// Like [`run`], but only for nodes that keep a cache.
fn caches(edit: &mut Edit<'_>) -> Result<()> {
    let work = edit.nodes().filter(|(_, n)| keeps_cache(edit, n));
    let work = work.map(|(id, _)| id).collect();
    decompose(edit, work, false)
}

/// True for attention with a cache: the node reads a 4-D input of the graph and, beside its first
/// result, returns a 4-D output of the graph.
pub(crate) fn keeps_cache(g: &Graph, node: &Node) -> bool {
    let four = |v: &crate::graph::ValueId| {
        let fact = g.value(*v).fact.as_ref();
        fact.is_none_or(|f| f.shape.rank() == 4)
    };
    let mut read = node.inputs.iter().flatten();
    let mut returned = node.outputs.iter().skip(1);
    read.any(|v| g.is_input(*v) && four(v)) && returned.any(|v| g.is_output(*v) && four(v))
}

/// `whole`: parts that have parts are decomposed too.
fn decompose(edit: &mut Edit<'_>, mut work: Vec<NodeId>, whole: bool) -> Result<()> {
    while let Some(id) = work.pop() {
        let Some(node) = edit.node(id).cloned() else {
            continue;
        };
        // Types that devices do not support keep the whole node on the host.
        let values = node.inputs.iter().flatten().chain(&node.outputs);
        let facts = values.filter_map(|v| edit.value(*v).fact.as_ref());
        if facts.into_iter().any(|f| !f.dtype.on_devices()) {
            continue;
        }
        let mut parts = Parts::new(edit, &node);
        match node.op.parts(&mut parts) {
            // If a part is not supported, the node stays on the host.
            Err(e @ (OpError::NoKernel(_) | OpError::Unsupported(_))) => {
                log::debug!("\"{}\" is not decomposed: {e}", node.name);
                parts.discard();
            }
            Err(e) => return Err(edit.node_error(Stage::Pass, &node, e)),
            Ok(None) => parts.discard(),
            // The parts may have parts.
            Ok(Some(results)) => {
                let made = parts.finish(id, &results);
                work.extend(made.into_iter().filter(|_| whole));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::graph::op::cast_like::CastLike;
    use crate::graph::pass::{DECOMPOSE, Pipeline};
    use crate::graph::{Edit, Graph, Op, ValueId, text};
    use crate::shape::{Dim, Fact, Shape};
    use crate::tensor::DType;

    fn node(edit: &mut Edit<'_>, name: &str, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let y = edit.add_value(name, None);
        let inputs = inputs.iter().copied().map(Some).collect();
        edit.add_node(name, vec![name.to_owned()], Box::new(op), inputs, vec![y]);
        y
    }

    fn input(edit: &mut Edit<'_>, name: &str, dtype: DType) -> ValueId {
        let x = edit.add_value(
            name,
            Some(Fact::new(dtype, Shape(vec![Dim::symbol("s"), 4.into()]))),
        );
        edit.add_input(x);
        x
    }

    fn after(graph: &mut Graph, edit_limit: usize) -> String {
        let pipeline = Pipeline {
            passes: vec![DECOMPOSE],
            edit_limit,
        };
        pipeline.run(graph).unwrap();
        text::print(graph).unwrap()
    }

    #[test]
    fn a_result_keeps_its_name_and_a_limit_holds() {
        let make = || {
            let mut graph = Graph::default();
            let mut edit = Edit::new(&mut graph);
            let (x, like) = (
                input(&mut edit, "x", DType::F32),
                input(&mut edit, "like", DType::I32),
            );
            let y = node(&mut edit, "y", CastLike::default(), &[x, like]);
            edit.add_output(y);
            graph
        };
        let text = after(&mut make(), usize::MAX);
        assert!(text.contains("y: i32[s, 4] = Cast"), "{text}");
        assert!(!text.contains("CastLike"), "{text}");
        let text = after(&mut make(), 0);
        assert!(text.contains("y: i32[s, 4] = CastLike"), "{text}");
    }
}
