use super::*;
use crate::graph::op::conv::Conv;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise, Unary};
use crate::graph::op::softmax::Softmax;
use crate::graph::op::window::{AutoPad, Window};
use crate::graph::{Edit, Op, derive};
use crate::shape::{Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// Builds a graph node by node; values are named as their nodes.
struct Builder(Graph);

impl Builder {
    fn new() -> Self {
        Self(Graph::default())
    }

    fn input(&mut self, name: &str, dtype: DType) -> ValueId {
        let mut edit = Edit::new(&mut self.0);
        let v = edit.add_value(name, Some(Fact::new(dtype, Shape::fixed(&[1, 2, 3, 3]))));
        edit.add_input(v);
        v
    }

    fn node(&mut self, name: &str, op: Box<dyn Op>, inputs: &[ValueId]) -> ValueId {
        let mut edit = Edit::new(&mut self.0);
        let out = edit.add_value(name, None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        edit.add_node(name, vec![name.to_owned()], op, inputs, vec![out]);
        out
    }

    fn conv(&mut self, name: &str, x: ValueId) -> ValueId {
        let w = HostTensor::from_f32(&[2, 2, 1, 1], &[1.0, 0.5, -1.0, 2.0]).unwrap();
        let w = Edit::new(&mut self.0).add_const(&format!("{name}_w"), Arc::new(w));
        let op = Conv {
            window: Window {
                kernel: vec![1, 1],
                strides: vec![1, 1],
                dilations: vec![1, 1],
                pads: vec![0; 4],
                auto_pad: AutoPad::Explicit,
                ceil: false,
            },
            group: 1,
        };
        self.node(name, Box::new(op), &[x, w])
    }

    fn unary(&mut self, name: &str, op: &str, f: Unary, x: ValueId) -> ValueId {
        let op = Pointwise {
            name: op.to_owned(),
            expr: Expr::Unary(f, Box::new(Expr::Input(0))),
        };
        self.node(name, Box::new(op), &[x])
    }

    fn binary(&mut self, name: &str, op: &str, f: Binary, operands: [ValueId; 2]) -> ValueId {
        self.node(name, Box::new(Pointwise::binary(op, f)), &operands)
    }

    fn placement(mut self, output: ValueId) -> (Graph, Placement) {
        Edit::new(&mut self.0).add_output(output);
        derive::derive(&mut self.0).unwrap();
        let placement = Placement::of(&self.0, &HashSet::new()).unwrap();
        (self.0, placement)
    }
}

/// Kinds of the layers with the names of their nodes.
fn layers(graph: &Graph, placement: &Placement) -> Vec<String> {
    let name = |id: &NodeId| graph.node(*id).unwrap().name.clone();
    let text = |l: &Layer| {
        let names: Vec<String> = l.nodes.iter().map(name).collect();
        format!("{}: {}", l.kind.name(), names.join(" "))
    };
    placement.layers.iter().map(text).collect()
}

#[test]
fn clamps_join_products_and_sums() {
    let mut b = Builder::new();
    let x = b.input("x", DType::F32);
    let c = b.conv("c", x);
    let r = b.unary("r", "Relu", Unary::Relu, c);
    let d = b.conv("d", r);
    let s = b.binary("s", "Add", Binary::Add, [r, d]);
    let y = b.unary("y", "Relu", Unary::Relu, s);
    let (graph, placement) = b.placement(y);
    assert_eq!(
        layers(&graph, &placement),
        ["product: c r", "product: d", "binary: s y"]
    );
    // The input, and a range for each layer.
    assert_eq!(placement.ranges.len(), 4);
    assert!(placement.range_of(c).is_none() && placement.range_of(s).is_none());
    assert!(placement.is_computed(r) && !placement.is_computed(x));
}

#[test]
fn functions_of_one_value_are_one_table() {
    let mut b = Builder::new();
    let x = b.input("x", DType::F32);
    let c = b.conv("c", x);
    let g = b.unary("g", "Sigmoid", Unary::Sigmoid, c);
    let silu = b.binary("silu", "Mul", Binary::Mul, [c, g]);
    let d = b.conv("d", silu);
    let t = b.unary("t", "Tanh", Unary::Tanh, d);
    let (graph, placement) = b.placement(t);
    let wanted = ["product: c", "table: g silu", "product: d", "table: t"];
    assert_eq!(layers(&graph, &placement), wanted);
    let fixed = placement.ranges[placement.range_of(t).unwrap()].fixed;
    assert_eq!(fixed.map(|a| (a.scale, a.zero)), Some((1.0 / 128.0, 0)));
    // The gate alone is read by nothing else.
    assert!(placement.range_of(g).is_none());
}

#[test]
fn an_inner_value_with_another_reader_is_quantized() {
    let mut b = Builder::new();
    let x = b.input("x", DType::F32);
    let c = b.conv("c", x);
    let g = b.unary("g", "Sigmoid", Unary::Sigmoid, c);
    let silu = b.binary("silu", "Mul", Binary::Mul, [c, g]);
    let d = b.conv("d", g);
    let s = b.binary("s", "Add", Binary::Add, [silu, d]);
    let (graph, placement) = b.placement(s);
    let wanted = [
        "product: c",
        "table: g",
        "binary: silu",
        "product: d",
        "binary: s",
    ];
    assert_eq!(layers(&graph, &placement), wanted);
}

#[test]
fn masks_stay_in_floats_and_scores_are_fixed() {
    let mut b = Builder::new();
    let x = b.input("x", DType::F32);
    let ids = b.input("ids", DType::I64);
    let cast = Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(DType::F32, Box::new(Expr::Input(0))),
    };
    let mask = b.node("mask", Box::new(cast), &[ids]);
    let c = b.conv("c", x);
    let masked = b.binary("masked", "Add", Binary::Add, [c, mask]);
    let softmax = Softmax {
        axis: -1,
        flatten: false,
    };
    let s = b.node("s", Box::new(softmax), &[masked]);
    let d = b.conv("d", s);
    let (graph, placement) = b.placement(d);
    assert_eq!(layers(&graph, &placement), ["product: c", "product: d"]);
    let left: Vec<&str> = placement
        .left
        .iter()
        .map(|l| graph.node(l.node).unwrap().name.as_str())
        .collect();
    assert_eq!(left, ["masked", "s"]);
    let fixed = placement.ranges[placement.range_of(s).unwrap()].fixed;
    assert_eq!(fixed.map(|a| (a.scale, a.zero)), Some((1.0 / 256.0, -128)));
}
