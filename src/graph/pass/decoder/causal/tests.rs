use super::*;
use crate::graph::Op;
use crate::graph::derive::derive;
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::range::Range;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::shape_of::ShapeOf;
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// A graph with an attention whose mask hides keys more than `ahead` positions after a query, or
/// before a window of 4. A mask that is an input may be added to it.
struct Build {
    graph: Graph,
}

impl Build {
    fn new(batch: i64, ahead: f64, window: bool, added: bool) -> Self {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let mut given = |name: &str, sizes: &str| {
            let dims = sizes.split(',').map(|d| Dim::parse(d.trim()).unwrap()).collect();
            let v = edit.add_value(name, Some(Fact::new(DType::F32, Shape(dims))));
            edit.add_input(v);
            v
        };
        let q = given("q", &format!("{batch}, s, 2, 4"));
        let k = given("k", &format!("{batch}, past + s, 2, 4"));
        let past = given("past", "past");
        let other = given("other", "1, 1, s, past + s");
        let mut ints = |name: &str, v: i64| {
            let tensor = HostTensor::from_i64(&[1], &[v]).unwrap();
            edit.add_const(name, Arc::new(tensor))
        };
        let (zero, one) = (ints("zero", 0), ints("one", 1));
        let mut node = |name: &str, op: Box<dyn Op>, inputs: &[ValueId]| {
            let v = edit.add_value(name, None);
            let inputs = inputs.iter().map(|v| Some(*v)).collect();
            edit.add_node(name, Vec::new(), op, inputs, vec![v]);
            v
        };
        let size = |axis| {
            Box::new(ShapeOf {
                start: axis,
                end: Some(axis + 1),
            })
        };
        let (first, total) = (node("first", size(0), &[past]), node("total", size(1), &[k]));
        let keys = node("keys", Box::new(Range), &[zero, total, one]);
        let rows = node("rows", Box::new(Range), &[first, total, one]);
        let rows = node("queries", Box::new(Reshape::Unsqueeze), &[rows, one]);
        let of = |f, a, b| Expr::Binary(f, Box::new(a), Box::new(b));
        let last = of(Binary::Add, Expr::Input(1), Expr::Const(ahead, DType::I64));
        let mut seen = of(Binary::LessOrEqual, Expr::Input(0), last);
        if window {
            let before = of(Binary::Sub, Expr::Input(1), Expr::Const(4.0, DType::I64));
            seen = of(Binary::And, seen, of(Binary::Greater, Expr::Input(0), before));
        }
        let [zero, low] = [0.0, -65504.0].map(|v| Box::new(Expr::Const(v, DType::F32)));
        let expr = Expr::Select(Box::new(seen), zero, low);
        let name = "Where".to_owned();
        let mut mask = node("mask", Box::new(Pointwise { name, expr }), &[keys, rows]);
        if added {
            let add = Box::new(Pointwise::binary("Add", Binary::Add));
            mask = node("sum", add, &[other, mask]);
        }
        let y = node("y", Box::new(Attention::scaled(0.5)), &[q, k, k, mask]);
        edit.add_output(y);
        derive(&mut graph).unwrap();
        Self { graph }
    }

    /// Attributes of the attention after the pass, and the name of its mask.
    fn run(mut self) -> (bool, Option<i64>, Option<String>) {
        run(&mut Edit::new(&mut self.graph)).unwrap();
        let mut nodes = self.graph.nodes().map(|(_, n)| n);
        let attention = nodes.find(|n| n.op.name() == "Attention").unwrap();
        let op = attention.op.downcast::<Attention>().unwrap();
        let mask = input(attention, 3).map(|v| self.graph.value(v).name.clone());
        (op.causal, op.window, mask)
    }
}

#[test]
fn exact_masks_become_attributes() {
    assert_eq!(Build::new(1, 0.0, false, false).run(), (true, None, None));
    assert_eq!(Build::new(3, 0.0, false, false).run(), (true, None, None));
    assert_eq!(Build::new(1, 0.0, true, false).run(), (true, Some(4), None));
}

#[test]
fn other_parts_of_a_mask_stay() {
    let other = || Some("other".to_owned());
    assert_eq!(Build::new(1, 0.0, false, true).run(), (true, None, other()));
    assert_eq!(Build::new(1, 0.0, true, true).run(), (true, Some(4), other()));
}

#[test]
fn other_masks_stay() {
    let mask = || Some("mask".to_owned());
    for ahead in [-1.0, 1.0] {
        assert_eq!(Build::new(1, ahead, false, false).run(), (false, None, mask()));
        assert_eq!(Build::new(1, ahead, true, false).run(), (false, None, mask()));
    }
    // Windows are for one sequence.
    assert_eq!(Build::new(2, 0.0, true, false).run(), (false, None, mask()));
}
