use super::*;
use crate::graph::derive::derive;
use crate::graph::interp::Interpreter;
use crate::graph::op::cumulative::Cumulative;
use crate::graph::op::expand::Expand;
use crate::graph::op::kv_append::KvAppend;
use crate::graph::op::pointwise::Binary;
use crate::graph::op::range::Range;
use crate::graph::op::reshape::Reshape;
use crate::graph::op::shape_of::ShapeOf;
use crate::graph::op::slice::Slice;
use crate::graph::pass::refusal;
use crate::graph::{Op, State};
use crate::shape::{Fact, Shape, Symbol};
use crate::tensor::HostTensor;
use std::collections::HashMap;
use std::sync::Arc;

/// A decoder with a cache and an output of positions.
struct Build {
    graph: Graph,
    /// Lists with one element: rows in the cache before and after a run.
    past: ValueId,
    total: ValueId,
}

impl Build {
    fn new() -> Self {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let mut input = |name: &str, dtype, sizes: &str| {
            let dims = sizes.split(',').map(|d| Dim::parse(d.trim()).unwrap()).collect();
            let v = edit.add_value(name, Some(Fact::new(dtype, Shape(dims))));
            edit.add_input(v);
            v
        };
        input("input_ids", DType::I64, "1, n");
        let cache = input("cache", DType::F32, "1, past, 1, 2");
        let new = input("new", DType::F32, "1, n, 1, 2");
        let mut known = edit.constraints().clone();
        known.bound(&Symbol::new("n"), Some(1), None).unwrap();
        edit.set_constraints(known);
        let mut build = Self {
            graph,
            past: cache,
            total: cache,
        };
        let all = build.node("all", KvAppend { axis: 1 }, &[cache, new]);
        Edit::new(&mut build.graph).add_state(State {
            input: cache,
            output: all,
            axis: 1,
            past: Symbol::new("past"),
            window: None,
        });
        let size = ShapeOf {
            start: 1,
            end: Some(2),
        };
        build.past = build.node("past", size.clone(), &[cache]);
        build.total = build.node("total", size, &[all]);
        build
    }

    fn node(&mut self, name: &str, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let mut edit = Edit::new(&mut self.graph);
        let v = edit.add_value(name, None);
        let inputs = inputs.iter().copied().map(Some).collect();
        edit.add_node(name, Vec::new(), Box::new(op), inputs, vec![v]);
        v
    }

    fn int(&mut self, v: i64) -> ValueId {
        Edit::new(&mut self.graph).add_int("number", v).unwrap()
    }

    fn range(&mut self, start: ValueId, end: ValueId, step: i64) -> ValueId {
        let step = self.int(step);
        self.node("range", Range, &[start, end, step])
    }

    fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.node("computed", Pointwise::binary("Binary", f), &[a, b])
    }

    /// Runs the pass with the output `y`.
    fn run(mut self, y: ValueId) -> Graph {
        Edit::new(&mut self.graph).add_output(y);
        derive(&mut self.graph).unwrap();
        let mut edit = Edit::new(&mut self.graph);
        run(&mut edit).unwrap();
        edit.remove_dead();
        derive(&mut self.graph).unwrap();
        self.graph
    }
}

fn float() -> Pointwise {
    Pointwise {
        name: "Cast".to_owned(),
        expr: Expr::Cast(DType::F32, Box::new(Expr::Input(0))),
    }
}

/// Checks that output `y` of `build` holds positions that become an input.
fn becomes_input(build: Build, y: ValueId) {
    let graph = build.run(y);
    assert_eq!(refusal(&graph), None);
    let fact = |v: ValueId| graph.fact(v).unwrap().clone();
    let given = graph.input(POSITIONS).unwrap();
    let mut values = HashMap::new();
    for v in graph.inputs().iter().chain([&graph.states()[0].input]) {
        let mut sizes = crate::shape::Bindings::new();
        sizes.set(&Symbol::new("n"), 3).set(&Symbol::new("past"), 5);
        let shape = fact(*v).shape.eval(&sizes).unwrap();
        let tensor = match *v == given {
            true => HostTensor::from_ints(fact(*v).dtype, &shape, &[9, 2, 40]),
            false => HostTensor::zeros(fact(*v).dtype, &shape),
        };
        values.insert(*v, tensor.unwrap());
    }
    let interpreter = Interpreter::new(Arc::new(graph.clone())).unwrap();
    let results = interpreter.run(values).unwrap();
    let found = &results[&graph.outputs()[0]];
    assert_eq!(*found.to_f32().unwrap(), [9.0, 2.0, 40.0]);
}

#[test]
fn computed_positions_become_an_input() {
    // From the length of the cache, which a float reads.
    let mut b = Build::new();
    let rows = b.range(b.past, b.total, 1);
    let y = b.node("float", float(), &[rows]);
    becomes_input(b, y);
    // Counted from 0 and shifted, as a column.
    let mut b = Build::new();
    let zero = b.int(0);
    let sequence = b.binary(Binary::Sub, b.total, b.past);
    let rows = b.range(zero, sequence, 1);
    let axis = b.int(1);
    let column = b.node("column", Reshape::Unsqueeze, &[rows, axis]);
    let sum = b.binary(Binary::Add, column, b.past);
    let y = b.node("float", float(), &[sum]);
    becomes_input(b, y);
    // The last part of the sums of a mask of ones.
    let mut b = Build::new();
    let (one, last) = (b.int(1), b.int(1 << 40));
    let ones = b.node("ones", Expand, &[one, b.total]);
    let sums = Cumulative {
        product: false,
        exclusive: false,
        reverse: false,
    };
    let axis = b.int(-1);
    let sums = b.node("sums", sums, &[ones, axis]);
    let all = b.binary(Binary::Sub, sums, one);
    let sequence = b.binary(Binary::Sub, b.past, b.total);
    let part = b.node("part", Slice, &[all, sequence, last]);
    let y = b.node("float", float(), &[part]);
    becomes_input(b, y);
}

#[test]
fn a_given_input_is_used() {
    let mut b = Build::new();
    let rows = Dim::symbol("n");
    let mut edit = Edit::new(&mut b.graph);
    let given = added(&mut edit, POSITIONS, DType::I32, vec![1.into(), rows]).unwrap();
    let rows = b.range(b.past, b.total, 1);
    let y = b.node("float", float(), &[rows]);
    assert_eq!(b.graph.input(POSITIONS), Some(given));
    becomes_input(b, y);
}

#[test]
fn other_numbers_stay_and_are_refused() {
    let stays = |make: &dyn Fn(&mut Build) -> ValueId| {
        let mut b = Build::new();
        let made = make(&mut b);
        let zero = b.int(0);
        let y = b.binary(Binary::Mul, made, zero);
        let graph = b.run(y);
        assert_eq!(graph.input(POSITIONS), None);
        refusal(&graph)
    };
    const BEFORE: &str = "it reads a cache before new rows are appended";
    const AFTER: &str = "only attention may read a cache";
    let shape = |name: &str, why: &str| Some(format!("node \"{name}\" (Shape): {why}"));
    // Every other position; one more than positions; positions of all keys; a length.
    let apart = stays(&|b| {
        let twice = b.binary(Binary::Add, b.total, b.total);
        let end = b.binary(Binary::Sub, twice, b.past);
        b.range(b.past, end, 2)
    });
    assert_eq!(apart, shape("past", BEFORE));
    let shifted = stays(&|b| {
        let one = b.int(1);
        let ends = [b.past, b.total].map(|v| b.binary(Binary::Add, v, one));
        b.range(ends[0], ends[1], 1)
    });
    assert_eq!(shifted, shape("past", BEFORE));
    let keys = stays(&|b| {
        let zero = b.int(0);
        b.range(zero, b.total, 1)
    });
    assert_eq!(keys, shape("total", AFTER));
    assert_eq!(stays(&|b| b.past), shape("past", BEFORE));
}
