//! What derivation says of small integers holds in every run: random computations on the shape of
//! an input, derived for symbols and run with numbers.

use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use transformer_lite::unstable::graph::interp::Interpreter;
use transformer_lite::unstable::graph::op::{
    Op, concat::Concat, cumulative::Cumulative, gather::Gather, pointwise::Binary, pointwise::Expr,
    pointwise::Pointwise, reduce::Kind, reduce::Reduce, reshape::Reshape, shape_of::ShapeOf, slice::Slice,
    split::Split, tile::Tile, transpose::Transpose, trilu::Trilu,
};
use transformer_lite::unstable::graph::{Edit, Graph, ValueId, derive};
use transformer_lite::unstable::num;
use transformer_lite::unstable::shape::{Bindings, Dim, Fact, Shape, Symbol};
use transformer_lite::unstable::tensor::{DType, HostTensor};

const SYMBOLS: [&str; 3] = ["batch", "past", "rows"];

/// Lists of integers over the shape of `x [batch, past + rows, 2*rows]`, and for each what it is
/// made of by moving alone.
struct Values<'a> {
    edit: Edit<'a>,
    lists: Vec<(ValueId, usize)>,
    moved: Vec<(ValueId, Vec<ValueId>)>,
}

impl Values<'_> {
    fn constant(&mut self, values: &[i64]) -> ValueId {
        let tensor = HostTensor::from_i64(&[values.len()], values).unwrap();
        self.edit.add_const("c", Arc::new(tensor))
    }

    fn node(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
        let v = self.edit.add_value("v", None);
        let inputs = inputs.iter().map(|v| Some(*v)).collect();
        self.edit.add_node("n", vec![], Box::new(op), inputs, vec![v]);
        self.edit.add_output(v);
        v
    }

    fn keep(&mut self, v: ValueId, len: usize, sources: &[ValueId]) {
        self.lists.push((v, len));
        if !sources.is_empty() {
            self.moved.push((v, sources.to_vec()));
        }
    }

    fn reshape(&mut self, v: ValueId, to: &[i64]) -> ValueId {
        let to = self.constant(to);
        self.node(Reshape::Reshape { allow_zero: false }, &[v, to])
    }

    /// One more list by operator `kind`, of earlier lists and numbers.
    fn step(&mut self, (kind, a, b, n): (u8, usize, usize, i64)) {
        let first = self.lists[a % self.lists.len()];
        let second = self.lists[b % self.lists.len()];
        if kind < 6 {
            self.moving(kind, first, second, n);
        } else {
            self.computing(kind, first, second, b, n);
        }
    }

    /// By an operator that moves elements.
    fn moving(&mut self, kind: u8, (v, len): (ValueId, usize), (w, other): (ValueId, usize), n: i64) {
        let size = num::signed(len);
        match kind {
            0 if len > 0 => {
                let at = self.constant(&[n.rem_euclid(size), -1, 0]);
                let y = self.node(Gather { axis: 0 }, &[v, at]);
                self.keep(y, 3, &[v]);
            }
            1 if len > 1 => {
                let [start, end, axes, steps] =
                    [&[-1], &[i64::MIN], &[0], &[-2]].map(|l: &[i64; 1]| self.constant(l));
                let y = self.node(Slice, &[v, start, end, axes, steps]);
                self.keep(y, len.div_ceil(2), &[v]);
            }
            2 if len + other <= 16 => {
                let y = self.node(Concat { axis: 0 }, &[v, w]);
                self.keep(y, len + other, &[v, w]);
            }
            3 if len <= 8 => {
                let column = self.reshape(v, &[-1, 1]);
                let by = self.constant(&[1, 2]);
                let tiled = self.node(Tile, &[column, by]);
                let turned = self.node(Transpose { perm: None }, &[tiled]);
                let y = self.reshape(turned, &[-1]);
                self.keep(y, 2 * len, &[v]);
            }
            4 if len > 1 => {
                let op = Split {
                    axis: 0,
                    sizes: Some(vec![1, size - 1]),
                    parts: 2,
                    uneven: false,
                };
                let (first, rest) = (self.edit.add_value("p", None), self.edit.add_value("q", None));
                self.edit
                    .add_node("split", vec![], Box::new(op), vec![Some(v)], vec![first, rest]);
                self.edit.add_output(first);
                self.edit.add_output(rest);
                self.keep(first, 1, &[v]);
                self.keep(rest, len - 1, &[v]);
            }
            5 => {
                let row = self.reshape(v, &[1, -1]);
                let diagonal = self.constant(&[1]);
                let upper = self.node(Trilu { upper: true }, &[row, diagonal]);
                let y = self.reshape(upper, &[-1]);
                self.keep(y, len, &[v]);
            }
            _ => {}
        }
    }

    /// By an operator that makes other elements; `b` and `n` choose its kind and its numbers.
    fn computing(
        &mut self,
        kind: u8,
        (v, len): (ValueId, usize),
        (w, other): (ValueId, usize),
        b: usize,
        n: i64,
    ) {
        match kind {
            6 => {
                let zero = self.constant(&[0]);
                let op = Cumulative {
                    product: false,
                    exclusive: n % 2 == 0,
                    reverse: n > 0,
                };
                let y = self.node(op, &[v, zero]);
                self.keep(y, len, &[]);
            }
            7 if len > 0 => {
                let kind = [Kind::Sum, Kind::Prod, Kind::Max, Kind::Min][b % 4];
                let op = Reduce {
                    kind,
                    axes: Some(vec![0]),
                    keep: true,
                    noop_without_axes: false,
                };
                let y = self.node(op, &[v]);
                self.keep(y, 1, &[]);
            }
            8 if other == len || other == 1 => {
                let cond = self.node(Pointwise::binary("Less", Binary::Less), &[v, w]);
                let [c, x, y] = [0, 1, 2].map(|i| Box::new(Expr::Input(i)));
                let y = self.node(
                    Pointwise {
                        name: "Where".into(),
                        expr: Expr::Select(c, x, y),
                    },
                    &[cond, w, v],
                );
                self.keep(y, len, &[]);
            }
            9 if other == len || other == 1 => {
                let f = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Min, Binary::Max]
                    [usize::try_from(n.rem_euclid(5)).unwrap()];
                let y = self.node(Pointwise::binary("f", f), &[v, w]);
                self.keep(y, len, &[]);
            }
            10 => {
                let divisor = self.constant(&[n.rem_euclid(4) + 1]);
                let f = if b.is_multiple_of(2) {
                    Binary::Div
                } else {
                    Binary::Mod
                };
                let y = self.node(Pointwise::binary("f", f), &[v, divisor]);
                self.keep(y, len, &[]);
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn known_integers_are_those_of_the_run(
        steps in proptest::collection::vec((0u8..11, 0usize..9, 0usize..9, -5i64..6), 1..9),
        sizes in proptest::array::uniform3(1i64..5),
    ) {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let shape = ["batch", "past + rows", "2*rows"].map(|d| Dim::parse(d).unwrap());
        let x = edit.add_value("x", Some(Fact::new(DType::F32, Shape(shape.to_vec()))));
        edit.add_input(x);
        let mut values = Values { edit, lists: vec![], moved: vec![] };
        let list = values.node(ShapeOf { start: 0, end: None }, &[x]);
        values.keep(list, 3, &[]);
        for step in steps {
            values.step(step);
        }
        let moved = values.moved;
        derive::derive(&mut graph).unwrap();
        let mut bindings = Bindings::new();
        for (name, v) in SYMBOLS.iter().zip(sizes) {
            bindings.set(&Symbol::new(name), v);
        }
        let known = |g: &Graph, v: ValueId| g.fact(v).unwrap().as_dims();
        for (v, sources) in moved {
            let all = sources.iter().all(|s| known(&graph, *s).is_some());
            prop_assert!(!all || known(&graph, v).is_some(), "elements get lost on the way to {}", graph.value(v).name);
        }
        let fixed = graph.fact(x).unwrap().shape.eval(&bindings).unwrap();
        let given = HashMap::from([(x, HostTensor::zeros(DType::F32, &fixed).unwrap())]);
        let graph = Arc::new(graph);
        let results = Interpreter::new(graph.clone()).unwrap().run(given).unwrap();
        for v in graph.outputs() {
            let Some(dims) = known(&graph, *v) else { continue };
            let found = results[v].to_i64().unwrap();
            prop_assert_eq!(dims.len(), found.len());
            for (dim, found) in dims.iter().zip(found) {
                // Beyond the range of integers a run wraps and an expression has no value.
                if let Ok(value) = dim.eval(&bindings) {
                    prop_assert_eq!(value, found, "{} of {}", dim, graph.value(*v).name);
                }
            }
        }
    }
}
