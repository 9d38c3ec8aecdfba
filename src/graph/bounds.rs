//! Bounds of the elements of integer tensors. Plans use them to decide how many bits an element
//! takes on a device.
//!
//! Bounds come from constants, sizes, the values that readers accept, and what the caller promises
//! about an input ([`Edit::bound_input`](super::Edit::bound_input)).
//! [`Op::bounds`](super::Op::bounds) propagates them from operands to results, and
//! [`Op::accepts`](super::Op::accepts) states which values an operator accepts. A graph input
//! without such limits has the bounds of its type.

use super::{Graph, Node, NodeId, ValueId};
use crate::num;
use crate::shape::{Bindings, Dim, Fact, Known};
use crate::tensor::DType;

/// The smallest and the largest value that an element of an integer tensor may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub low: i128,
    pub high: i128,
}

/// The largest size of an axis. Kernels count elements in 32 bits, so no operand has more.
const LARGEST_SIZE: i128 = i32::MAX as i128;

impl Bounds {
    /// Truth values.
    pub const TRUTH: Self = Self::new(0, 1);

    /// The values of a 32-bit signed integer.
    pub const WORD: Self = Self::new(i32::MIN as i128, i32::MAX as i128);

    /// The values from `low` to `high`, inclusive.
    pub const fn new(low: i128, high: i128) -> Self {
        Self { low, high }
    }

    /// The valid indices of an axis of `size` elements. Negative ones count from its end.
    pub fn indices(size: i128) -> Self {
        Self::new(-size, size - 1)
    }

    /// Every value of an integer type or `bool`; `None` for other types.
    pub fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::Bool => Some(Self::TRUTH),
            other => other.int_range().map(|(low, high)| Self::new(low, high)),
        }
    }

    /// Whether all values are within `other`.
    pub fn within(self, other: Self) -> bool {
        other.low <= self.low && self.high <= other.high
    }

    /// Whether a 32-bit signed integer holds all values.
    pub fn fits_32(self) -> bool {
        self.within(Self::WORD)
    }

    /// The smallest bounds that contain both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self::new(self.low.min(other.low), self.high.max(other.high))
    }

    /// The values that both contain; `self` if there are none.
    #[must_use]
    pub fn meet(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        if low <= high { Self::new(low, high) } else { self }
    }

    /// The bounds of `f(a, b)` for a function that is monotonic in each argument.
    pub fn corners(self, other: Self, f: impl Fn(i128, i128) -> i128) -> Self {
        let all = [self.low, self.high].map(|a| [other.low, other.high].map(|b| f(a, b)));
        let all = all.into_iter().flatten();
        let start = Self::new(f(self.low, other.low), f(self.low, other.low));
        all.fold(start, |bounds, v| bounds.join(Self::new(v, v)))
    }

    /// The bounds of a tensor whose elements shape inference knows.
    fn of_known(fact: &Fact, limits: &Bindings) -> Option<Self> {
        if let Some(tensor) = fact.as_const() {
            // 32-bit words may be gigabytes of packed weights.
            if !matches!(fact.dtype, DType::I64 | DType::U64) {
                return None;
            }
            let values = tensor.to_i128().ok()?.into_iter();
            return values.map(|v| Self::new(v, v)).reduce(Self::join);
        }
        let Known::Dims(dims) = &fact.known else {
            return None;
        };
        let each = dims.iter().map(|d| d.bounds(limits).ok());
        let each = each.map(|b| b.map(|(low, high)| Self::new(low.into(), high.into())));
        // If a size has no limit, each run checks that it fits the table that kernels read.
        let all = each.map(|b| b.unwrap_or(Self::WORD));
        all.reduce(Self::join)
    }
}

/// The information from which an operator derives the bounds of its results.
#[derive(Clone, Copy, Debug)]
pub struct BoundsCx<'a> {
    /// Bounds of the operands; `None` for floats and omitted operands.
    inputs: &'a [Option<Bounds>],
    /// Facts of the operands.
    facts: &'a [Option<&'a Fact>],
    /// Number of results.
    pub results: usize,
    limits: &'a Bindings,
}

impl<'a> BoundsCx<'a> {
    /// Bounds of operand `i`; `None` if it is a float or omitted.
    pub fn input(&self, i: usize) -> Option<Bounds> {
        self.inputs.get(i).copied().flatten()
    }

    /// Number of operands.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// The fact of operand `i`.
    pub fn fact(&self, i: usize) -> Option<&'a Fact> {
        self.facts.get(i).copied().flatten()
    }

    /// Upper bound of a size.
    pub fn size(&self, size: &Dim) -> i128 {
        let most = size
            .bounds(self.limits)
            .map_or(LARGEST_SIZE, |(_, high)| high.into());
        most.clamp(0, LARGEST_SIZE)
    }

    /// Upper bound of the number of elements of operand `i`.
    pub fn count(&self, i: usize) -> i128 {
        let count = self.fact(i).and_then(|f| f.shape.count().ok());
        count.map_or(LARGEST_SIZE, |n| self.size(&n))
    }

    /// Whether operand `i` has elements in every run.
    pub fn is_never_empty(&self, i: usize) -> bool {
        let sizes = self.fact(i).map(|f| f.shape.0.as_slice());
        sizes.is_some_and(|sizes| sizes.iter().all(|n| n.as_const().is_some_and(|n| n > 0)))
    }

    /// The valid indices of the largest axis of operand `i`.
    pub fn any_index(&self, i: usize) -> Bounds {
        let sizes = self.fact(i).map(|f| f.shape.0.as_slice()).unwrap_or_default();
        Bounds::indices(sizes.iter().map(|n| self.size(n)).max().unwrap_or(1))
    }

    /// Upper bound of the size of an axis of operand `i`. A negative `axis` counts from the last
    /// one.
    pub fn axis(&self, i: usize, axis: i64) -> i128 {
        let size = self.fact(i).and_then(|f| {
            let rank = num::signed(f.shape.rank());
            let at = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
            f.shape.0.get(at)
        });
        size.map_or(LARGEST_SIZE, |n| self.size(n))
    }
}

/// Bounds of all values of a graph with these facts. `limits` are upper bounds of symbols. `None`
/// for values that are not integers.
pub fn derive(
    graph: &Graph,
    order: &[NodeId],
    facts: &[Option<Fact>],
    limits: &Bindings,
) -> Vec<Option<Bounds>> {
    let fact = |v: ValueId| facts.get(v.index()).and_then(Option::as_ref);
    let mut all: Vec<Option<Bounds>> = facts
        .iter()
        .map(|f| {
            let f = f.as_ref()?;
            let of_type = Bounds::of(f.dtype)?;
            Some(Bounds::of_known(f, limits).map_or(of_type, |b| of_type.meet(b)))
        })
        .collect();
    let nodes = || order.iter().filter_map(|id| graph.node(*id));
    // Backward: the values that readers accept.
    let mut accepted: Vec<Option<Bounds>> = vec![None; all.len()];
    for node in nodes().rev() {
        let (inputs, own) = operands(node, &all, fact);
        let cx = BoundsCx {
            inputs: &inputs,
            facts: &own,
            results: node.outputs.len(),
            limits,
        };
        for (i, v) in node.inputs.iter().enumerate() {
            let passed_on = || {
                let out = node.outputs.first().filter(|_| node.op.keeps_all(i, &cx))?;
                accepted.get(out.index()).copied().flatten()
            };
            let Some(v) = v else { continue };
            let found = node.op.accepts(i, &cx).or_else(passed_on);
            if let (Some(found), Some(slot)) = (found, accepted.get_mut(v.index())) {
                *slot = Some(slot.map_or(found, |old| old.meet(found)));
            }
        }
    }
    for v in graph.inputs() {
        narrow(&mut all, *v, graph.value(*v).bounds);
        narrow(&mut all, *v, accepted.get(v.index()).copied().flatten());
    }
    // Forward: bounds that follow from the operands.
    for node in nodes() {
        let (inputs, own) = operands(node, &all, fact);
        let cx = BoundsCx {
            inputs: &inputs,
            facts: &own,
            results: node.outputs.len(),
            limits,
        };
        let found = node.op.bounds(&cx);
        for (o, v) in node.outputs.iter().enumerate() {
            let (Some(of_type), Some(found)) = (
                fact(*v).and_then(|f| Bounds::of(f.dtype)),
                found.get(o).copied().flatten(),
            ) else {
                continue;
            };
            // A result that may exceed its type wraps around, so its bounds are those of the type.
            if let (true, Some(Some(slot))) = (found.within(of_type), all.get_mut(v.index())) {
                *slot = found.meet(*slot);
            }
        }
        // The ends of 32 bits are no index of an axis, so readers still find what they reject.
        if let Some(v) = node.outputs.first()
            && node.op.saturates(&cx)
            && accepted
                .get(v.index())
                .copied()
                .flatten()
                .is_some_and(Bounds::fits_32)
        {
            narrow(&mut all, *v, Some(Bounds::WORD));
        }
    }
    all
}

/// Restricts the bounds of `v` to those in `found`.
fn narrow(all: &mut [Option<Bounds>], v: ValueId, found: Option<Bounds>) {
    if let (Some(Some(slot)), Some(found)) = (all.get_mut(v.index()), found) {
        *slot = slot.meet(found);
    }
}

/// Bounds and facts of a node's operands.
fn operands<'a>(
    node: &Node,
    all: &[Option<Bounds>],
    fact: impl Fn(ValueId) -> Option<&'a Fact>,
) -> (Vec<Option<Bounds>>, Vec<Option<&'a Fact>>) {
    let bounds = |v: &Option<ValueId>| v.and_then(|v| all.get(v.index()).copied().flatten());
    let inputs = node.inputs.iter().map(bounds).collect();
    (inputs, node.inputs.iter().map(|v| v.and_then(&fact)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::gather::Gather;
    use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
    use crate::graph::op::reduce::{Kind, Reduce};
    use crate::graph::op::reshape::Reshape;
    use crate::graph::{Edit, Op};
    use crate::shape::Shape;
    use crate::tensor::HostTensor;
    use std::sync::Arc;

    const LONG: Bounds = Bounds::new(i64::MIN as i128, i64::MAX as i128);

    /// A graph with the `i64` input `x` of 6 elements and a table of 10 rows. `build` returns its
    /// outputs.
    fn bounds_of(
        build: impl FnOnce(&mut Nodes<'_, '_>, ValueId, ValueId) -> Vec<ValueId>,
    ) -> (Bounds, Vec<Bounds>) {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let x = edit.add_value("x", Some(Fact::new(DType::I64, Shape::fixed(&[6]))));
        edit.add_input(x);
        let table = HostTensor::from_f32(&[10, 1], &[0.5; 10]).unwrap();
        let table = edit.add_const("table", Arc::new(table));
        let outputs = build(&mut Nodes(&mut edit), x, table);
        for v in &outputs {
            edit.add_output(*v);
        }
        crate::graph::derive::derive(&mut graph).unwrap();
        let facts: Vec<Option<Fact>> = graph.values.iter().map(|v| v.fact.clone()).collect();
        let all = derive(&graph, &graph.order().unwrap(), &facts, &Bindings::new());
        let of = |v: ValueId| all[v.index()].unwrap_or(LONG);
        (of(x), outputs.into_iter().map(of).collect())
    }

    struct Nodes<'a, 'g>(&'a mut Edit<'g>);

    impl Nodes<'_, '_> {
        fn add(&mut self, op: impl Op + 'static, inputs: &[ValueId]) -> ValueId {
            let name = format!("n{}", inputs.len());
            let out = self.0.add_value(&name, None);
            let inputs = inputs.iter().copied().map(Some).collect();
            self.0
                .add_node(&name, vec![name.clone()], Box::new(op), inputs, vec![out]);
            out
        }

        fn ints(&mut self, values: &[i64]) -> ValueId {
            let tensor = HostTensor::from_i64(&[values.len()], values).unwrap();
            self.0.add_const("c", Arc::new(tensor))
        }
    }

    fn binary(f: Binary) -> Pointwise {
        Pointwise::binary("f", f)
    }

    #[test]
    fn input_has_the_bounds_of_its_type_without_a_reader_that_rejects() {
        let (x, y) = bounds_of(|n, x, _| vec![n.add(binary(Binary::Add), &[x, x])]);
        assert_eq!((x, y), (LONG, vec![LONG]));
    }

    #[test]
    fn input_read_as_an_index_has_the_indices_of_the_axis() {
        let (x, _) = bounds_of(|n, x, table| {
            let shape = n.ints(&[2, 3]);
            let index = n.add(Reshape::Reshape { allow_zero: false }, &[x, shape]);
            vec![
                n.add(Gather { axis: 0 }, &[table, index]),
                n.add(binary(Binary::Less), &[x, x]),
            ]
        });
        assert_eq!(x, Bounds::new(-10, 9), "also for readers that accept all");
    }

    #[test]
    fn input_of_which_a_part_is_an_index_keeps_the_bounds_of_its_type() {
        let (x, y) = bounds_of(|n, x, table| {
            let at = n.ints(&[0, 2]);
            let part = n.add(Gather { axis: 0 }, &[x, at]);
            vec![n.add(Gather { axis: 0 }, &[table, part]), part]
        });
        assert_eq!((x, y[1]), (LONG, LONG));
    }

    #[test]
    fn sums_are_bounded_by_their_terms() {
        let reduce = Reduce {
            kind: Kind::Sum,
            axes: Some(vec![0]),
            keep: true,
            noop_without_axes: false,
        };
        let (_, y) = bounds_of(|n, x, _| {
            let truth = n.add(binary(Binary::Less), &[x, x]);
            let cast = Pointwise {
                name: "Cast".to_owned(),
                expr: Expr::Cast(DType::I64, Box::new(Expr::Input(0))),
            };
            let ones = n.add(cast, &[truth]);
            vec![n.add(reduce.clone(), &[ones]), n.add(reduce, &[x])]
        });
        assert_eq!(y, [Bounds::new(0, 6), LONG]);
    }

    #[test]
    fn constants_are_bounded_by_their_elements() {
        let (_, y) = bounds_of(|n, x, _| {
            let c = n.ints(&[1 << 40, -3, 0, 0, 0, 0]);
            vec![
                n.add(binary(Binary::Min), &[x, c]),
                n.add(binary(Binary::Max), &[c, c]),
            ]
        });
        assert_eq!(y, [Bounds::new(LONG.low, 1 << 40), Bounds::new(-3, 1 << 40)]);
    }
}
