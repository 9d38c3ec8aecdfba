//! Classifies operators: those that compute shapes and those that compute tensors (paper, section
//! 2.1 and figure 1).
//!
//! `Shape` and `Size` compute shapes. So does an operator whose operands all follow from shapes and
//! constants, if its results are read only by such operators or as sizes, such as the target of a
//! `Reshape`. All other operators compute tensors, including a `Range` over a length whose numbers
//! are used as positions.

use super::{Graph, NodeId};
use crate::error::Result;
use std::collections::HashMap;

/// What an operator computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Sizes, axes and similar values, known from the symbols alone.
    Shape,
    /// Activations, which depend on data.
    Tensor,
}

/// The class of every node. The facts of `graph` must be derived.
pub fn classes(graph: &Graph) -> Result<HashMap<NodeId, Class>> {
    let order = graph.order()?;
    let is_const = |v| {
        let fact = graph.value(v).fact.as_ref();
        fact.is_some_and(|f| f.as_const().is_some())
    };
    // Forward: what follows from shapes and constants.
    let mut follows = vec![false; graph.values.len()];
    let mut candidate = vec![false; graph.nodes.len()];
    let asks = |name: &str| matches!(name, "Shape" | "Size");
    for id in &order {
        let Some(node) = graph.node(*id) else { continue };
        let mut operands = node.inputs.iter().flatten();
        if asks(node.op.name()) || operands.all(|v| is_const(*v) || follows[v.index()]) {
            candidate[id.index()] = true;
            for out in &node.outputs {
                follows[out.index()] = true;
            }
        }
    }
    // Backward: what is used for anything but shapes.
    let mut data = vec![false; graph.values.len()];
    for v in graph
        .outputs()
        .iter()
        .chain(graph.states().iter().map(|s| &s.output))
    {
        data[v.index()] = true;
    }
    let mut classes = HashMap::with_capacity(order.len());
    for id in order.iter().rev() {
        let Some(node) = graph.node(*id) else { continue };
        let unused = node.outputs.iter().all(|v| !data[v.index()]);
        let shape = asks(node.op.name()) || candidate[id.index()] && unused;
        classes.insert(*id, if shape { Class::Shape } else { Class::Tensor });
        if !shape {
            for (i, v) in node.inputs.iter().enumerate() {
                if let Some(v) = v.filter(|_| node.op.reads(i)) {
                    data[v.index()] = true;
                }
            }
        }
    }
    Ok(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::derive::derive;
    use crate::graph::op::concat::Concat;
    use crate::graph::op::gather::Gather;
    use crate::graph::op::reshape::Reshape;
    use crate::graph::op::shape_of::ShapeOf;
    use crate::graph::op::transpose::Transpose;
    use crate::graph::{Edit, Op, ValueId};
    use crate::shape::{Dim, Fact, Shape};
    use crate::tensor::{DType, HostTensor};
    use std::sync::Arc;

    /// A graph as in figure 1 of the paper: the sizes of an activation, taken apart and put
    /// together, are the target of a `Reshape`.
    fn demonstration() -> Graph {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let shape = Shape(vec![1.into(), Dim::symbol("N"), 64.into()]);
        let x = edit.add_value("x", Some(Fact::new(DType::F32, shape)));
        edit.add_input(x);
        let ints = |edit: &mut Edit<'_>, name: &str, v: &[i64]| {
            edit.add_const(name, Arc::new(HostTensor::from_i64(&[v.len()], v).unwrap()))
        };
        let one = ints(&mut edit, "one", &[1]);
        let heads = ints(&mut edit, "heads", &[4, 16]);
        let node = |edit: &mut Edit<'_>, name: &str, op: Box<dyn Op>, inputs: Vec<ValueId>| {
            let out = edit.add_value(name, None);
            edit.add_node(
                name,
                vec![name.to_owned()],
                op,
                inputs.into_iter().map(Some).collect(),
                vec![out],
            );
            out
        };
        let turned = node(
            &mut edit,
            "turned",
            Box::new(Transpose {
                perm: Some(vec![0, 2, 1]),
            }),
            vec![x],
        );
        let back = node(
            &mut edit,
            "back",
            Box::new(Transpose {
                perm: Some(vec![0, 2, 1]),
            }),
            vec![turned],
        );
        let sizes = node(
            &mut edit,
            "sizes",
            Box::new(ShapeOf { start: 0, end: None }),
            vec![back],
        );
        let length = node(
            &mut edit,
            "length",
            Box::new(Gather { axis: 0 }),
            vec![sizes, one],
        );
        let target = node(
            &mut edit,
            "target",
            Box::new(Concat { axis: 0 }),
            vec![one, length, heads],
        );
        let y = node(
            &mut edit,
            "y",
            Box::new(Reshape::Reshape { allow_zero: false }),
            vec![back, target],
        );
        edit.add_output(y);
        graph
    }

    fn named(graph: &mut Graph) -> Vec<(String, Class)> {
        derive(graph).unwrap();
        let classes = classes(graph).unwrap();
        let all = graph.nodes().map(|(id, n)| (n.name.clone(), classes[&id]));
        all.collect()
    }

    #[test]
    fn the_demonstration_of_the_paper() {
        let wanted = [
            ("turned", Class::Tensor),
            ("back", Class::Tensor),
            ("sizes", Class::Shape),
            ("length", Class::Shape),
            ("target", Class::Shape),
            ("y", Class::Tensor),
        ];
        assert_eq!(
            named(&mut demonstration()),
            wanted.map(|(n, c)| (n.to_owned(), c))
        );
    }

    #[test]
    fn sizes_that_are_used_as_data_are_tensors_but_for_shape_itself() {
        let mut graph = demonstration();
        let length = graph.nodes().find(|(_, n)| n.name == "length").unwrap().1.outputs[0];
        Edit::new(&mut graph).add_output(length);
        let found = named(&mut graph);
        let class = |name: &str| found.iter().find(|(n, _)| n == name).unwrap().1;
        assert_eq!(
            [class("sizes"), class("length"), class("target")],
            [Class::Shape, Class::Tensor, Class::Shape]
        );
    }
}
