//! A subgraph that runs repeatedly. ONNX `Loop` from opset 1.
//!
//! Operands: the maximum number of iterations and the initial condition (either may be omitted for
//! no limit), then the loop-carried values. The body receives the iteration number, the condition
//! and the carried values; it returns the next condition, the next carried values, and scan
//! outputs, which are stacked over the iterations.

use crate::graph::ValueId;
use crate::graph::body::Body;
use crate::graph::op::case::Case;
use crate::graph::op::concat::Concat;
use crate::graph::op::if_else::{decided, truth};
use crate::graph::op::parts::Parts;
use crate::graph::op::{
    ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, fit, one_int, onnx, operand,
};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    pub body: Body,
    /// Number of loop-carried values.
    pub carried: usize,
}

impl Loop {
    /// Number of scan outputs.
    fn stacked(&self) -> usize {
        self.body.graph().outputs().len().saturating_sub(self.carried + 1)
    }
}

/// An empty result `i` of an operator whose body did not run; sizes known only in the run are 0.
pub(crate) fn empty(op: &dyn Op, inputs: &Inputs<'_>, i: usize) -> OpResult<HostTensor> {
    let all = fit(op, inputs)?;
    let fact = all
        .get(i)
        .ok_or_else(|| OpError::expected("result", i, all.len()))?;
    let size = |d: &Dim| as_usize(d).unwrap_or(0);
    Ok(HostTensor::zeros(
        fact.dtype,
        &fact.shape.0.iter().map(size).collect::<Vec<_>>(),
    )?)
}

/// Stacks tensors of one type and shape along a new first axis.
pub(crate) fn stack(parts: &[HostTensor]) -> OpResult<Option<HostTensor>> {
    let Some(first) = parts.first() else {
        return Ok(None);
    };
    let mut bytes = crate::graph::op::room(&[parts.len(), first.byte_len()])?;
    for part in parts {
        if part.dtype() != first.dtype() || part.shape() != first.shape() {
            return Err(OpError::mismatch(
                "stacked values",
                format!("{first:?}"),
                format!("{part:?}"),
            ));
        }
        bytes.extend_from_slice(part.bytes()?);
    }
    let shape = [&[parts.len()], first.shape()].concat();
    Ok(Some(HostTensor::from_bytes(first.dtype(), &shape, &bytes)?))
}

/// Limits for unrolling: iterations, and nodes of all iterations.
const MAX_RUNS: usize = 64;
const MAX_NODES: usize = 2048;

/// True if this many iterations are unrolled into nodes.
pub(crate) fn unrolls(body: &Body, runs: usize) -> bool {
    let nodes = body.graph().nodes().count();
    (1..=MAX_RUNS).contains(&runs) && nodes.saturating_mul(runs) <= MAX_NODES
}

/// Stacks values along a new axis.
pub(crate) fn stacked(cx: &mut Parts<'_, '_>, what: &str, list: &[ValueId], axis: i64) -> OpResult<ValueId> {
    let mut rows = Vec::with_capacity(list.len());
    for (i, v) in list.iter().enumerate() {
        rows.push(Some(cx.unsqueeze(&format!("{what}/{i}"), *v, &[axis])?));
    }
    cx.node(what, Concat { axis }, &rows)
}

impl Op for Loop {
    fn name(&self) -> &str {
        "Loop"
    }

    fn runs_graphs(&self) -> bool {
        true
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let most = match cx.opt(0).map(Fact::as_dims) {
            Some(Some(list)) => list.first().map(|n| n.maximum(&0.into())).transpose()?,
            _ => None,
        };
        // The body runs only if the condition is true.
        let yes = Fact::of(Arc::new(HostTensor::from_bool(&[], &[true])?));
        let before = [Fact::new(DType::I64, Shape::default()), yes];
        let carried = (0..self.carried)
            .map(|i| cx.fact(2 + i).cloned())
            .collect::<OpResult<Vec<_>>>()?;
        let derived = self.body.repeated(cx, &before, &carried, &[], 1)?;
        let mut facts = derived.kept(cx, &carried, 1);
        let begins = cx.opt(1).is_none_or(|c| decided(c) == Some(true));
        let runs = match (cx.opt(0), &most) {
            (None, _) => true,
            (_, most) => most
                .as_ref()
                .is_some_and(|n| cx.constraints().at_least(n, 1) == Some(true)),
        };
        // A body that never runs imposes no conditions.
        if begins && runs {
            cx.assume(derived.assumed().cloned());
        }
        let whole = begins && derived.facts.first().and_then(decided) == Some(true);
        for k in 0..self.stacked() {
            let output = self.carried + k;
            let missing = || OpError::expected("result of the body", 1 + output, derived.facts.len());
            let each = derived.facts.get(1 + output).ok_or_else(missing)?;
            let runs = match &most {
                Some(most) if whole => most.clone(),
                most => cx.unknown(self.carried, 0, most.clone()),
            };
            let mut shape = vec![runs];
            for (axis, size) in each.shape.0.iter().enumerate() {
                let outer = derived.is_outer(size);
                shape.push(if outer {
                    size.clone()
                } else {
                    cx.unknown(output, axis + 1, None)
                });
            }
            facts.push(Fact::new(each.dtype, Shape(shape)));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let most = optional(0).map_or(Ok(i64::MAX), |n| one_int(n, "number of iterations"))?;
        let mut go = optional(1).map_or(Ok(true), truth)?;
        let mut carried = (0..self.carried)
            .map(|i| operand(inputs, 2 + i).cloned())
            .collect::<OpResult<Vec<_>>>()?;
        let mut stacks = vec![Vec::new(); self.stacked()];
        let mut run = 0;
        while go && run < most {
            quota::iterate()?;
            let mut given = vec![
                HostTensor::from_i64(&[], &[run])?,
                HostTensor::from_bool(&[], &[true])?,
            ];
            given.append(&mut carried);
            let mut results = self.body.eval(given, inputs)?.into_iter();
            go = truth(
                &results
                    .next()
                    .ok_or_else(|| OpError::expected("condition", "a truth value", "nothing"))?,
            )?;
            carried = results.by_ref().take(self.carried).collect();
            for (stack, value) in stacks.iter_mut().zip(results) {
                stack.push(value);
            }
            run += 1;
        }
        for (k, parts) in stacks.iter().enumerate() {
            carried.push(match stack(parts)? {
                Some(all) => all,
                None => empty(self, inputs, self.carried + k)?,
            });
        }
        Ok(carried)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let most = match cx.opt(0) {
            Some(v) => match cx.fact(v)?.as_dims().as_deref() {
                Some([n]) => n.as_const(),
                _ => None,
            },
            None => Some(i64::MAX),
        };
        let begins = cx
            .opt(1)
            .map_or(Ok(Some(true)), |v| cx.fact(v).map(|f| decided(&f)))?;
        let (Some(most), Some(true)) = (most, begins) else {
            return Ok(None);
        };
        let mut carried = (0..self.carried)
            .map(|i| cx.input(2 + i))
            .collect::<OpResult<Vec<_>>>()?;
        let mut stacks = vec![Vec::new(); self.stacked()];
        let mut go = true;
        for run in 0.. {
            if !go || i64::try_from(run).is_ok_and(|r| r >= most) {
                break;
            }
            if !unrolls(&self.body, run + 1) {
                return Ok(None);
            }
            let number = HostTensor::from_i64(&[], &[num::signed(run)])?;
            let mut given = vec![
                cx.constant(&format!("number{run}"), number),
                cx.constant(&format!("go{run}"), HostTensor::from_bool(&[], &[true])?),
            ];
            given.append(&mut carried);
            let mut results = cx.inline(&format!("run{run}"), &self.body, &given)?.into_iter();
            let Some(next) = results.next() else {
                return Ok(None);
            };
            let Some(holds) = decided(&cx.fact(next)?) else {
                return Ok(None);
            };
            go = holds;
            carried = results.by_ref().take(self.carried).collect();
            for (stack, v) in stacks.iter_mut().zip(results) {
                stack.push(v);
            }
        }
        if stacks.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        for (k, list) in stacks.iter().enumerate() {
            carried.push(stacked(cx, &format!("all{k}"), list, 0)?);
        }
        Ok(Some(carried))
    }

    fn decides(&self, input: usize) -> bool {
        input < 2
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let carried = a.input_count().saturating_sub(2);
    let body = a
        .graph("body", 2)?
        .ok_or_else(|| OpError::expected("attribute `body`", "a graph", "nothing"))?;
    body.check("attribute `body`", carried + 2, carried + 1)?;
    Ok(Box::new(Loop { body, carried }))
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Loop", 1, ANY).outputs(ANY)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    // Subgraphs come from models: see `tests/references/onnx_nodes.rs`.
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::pointwise::{Binary, Pointwise};
    use crate::graph::op::reshape::Reshape;
    use crate::graph::{Edit, Graph};
    use crate::shape::Constraints;

    /// A loop that goes on as long as it may and gives what `op` makes of the carried value and
    /// itself, twice.
    fn double(op: impl Op + 'static) -> Loop {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let [run, go, x] = ["run", "go", "x"].map(|n| edit.add_value(n, None));
        [run, go, x].into_iter().for_each(|v| edit.add_input(v));
        let (next, y) = (edit.add_value("next", None), edit.add_value("y", None));
        edit.add_node(
            "same",
            vec![],
            Box::new(Reshape::Identity),
            vec![Some(go)],
            vec![next],
        );
        edit.add_node("op", vec![], Box::new(op), vec![Some(x), Some(x)], vec![y]);
        [next, y, y].into_iter().for_each(|v| edit.add_output(v));
        Loop {
            body: Body::new(graph, 3..3).unwrap(),
            carried: 1,
        }
    }

    fn shapes(op: &Loop, most: Option<i64>) -> Vec<String> {
        let count = Fact::new(DType::I64, Shape::default());
        let count = most.map_or(count, |n| {
            Fact::of(Arc::new(HostTensor::from_i64(&[], &[n]).unwrap()))
        });
        let x = Fact::new(DType::F32, Shape(vec![Dim::symbol("s")]));
        let (inputs, known) = ([Some(&count), None, Some(&x)], Constraints::default());
        let cx = InferCx::new(&inputs, &known).named(&["n", "", "x"], &["last", "all"]);
        op.infer(&cx)
            .unwrap()
            .iter()
            .map(|f| f.shape.to_string())
            .collect()
    }

    #[test]
    fn sizes_that_every_run_keeps_are_known() {
        let op = double(Pointwise::binary("Add", Binary::Add));
        assert_eq!(shapes(&op, Some(3)), ["[s]", "[3, s]"]);
        assert_eq!(
            shapes(&op, None),
            ["[s]", "[all_0, s]"],
            "how many runs there are is data"
        );
    }

    #[test]
    fn sizes_that_a_run_changes_are_not() {
        let op = double(Concat { axis: 0 });
        assert_eq!(shapes(&op, Some(3)), ["[last_0]", "[3, all_1]"]);
    }

    #[test]
    fn symbols_of_elements_are_taken_too() {
        let op = double(Concat { axis: 0 });
        let sizes = Fact {
            known: crate::shape::Known::Dims(vec![Dim::symbol("each_0_0")]),
            ..Fact::new(DType::I64, Shape::fixed(&[1]))
        };
        let x = Fact::new(DType::F32, Shape(vec![Dim::symbol("s")]));
        let before = [
            Fact::new(DType::I64, Shape::default()),
            Fact::new(DType::Bool, Shape::default()),
        ];
        let inner = |inputs: &[Option<&Fact>]| {
            let known = Constraints::default();
            let cx = InferCx::new(inputs, &known);
            let derived = op
                .body
                .repeated(&cx, &before, std::slice::from_ref(&x), &[], 1)
                .unwrap();
            derived.is_outer(&Dim::symbol("each_0_0"))
        };
        assert!(!inner(&[None, None, Some(&x)]), "its name where it is free");
        assert!(inner(&[None, None, Some(&x), Some(&sizes)]));
    }

    #[test]
    fn a_body_that_may_not_run_assumes_nothing() {
        // The body adds what it carries to an operand of another size.
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let [run, go, x, w] = ["run", "go", "x", "w"].map(|n| edit.add_value(n, None));
        [run, go, x, w].into_iter().for_each(|v| edit.add_input(v));
        let (next, y) = (edit.add_value("next", None), edit.add_value("y", None));
        edit.add_node(
            "same",
            vec![],
            Box::new(Reshape::Identity),
            vec![Some(go)],
            vec![next],
        );
        edit.add_node(
            "op",
            vec![],
            Box::new(Pointwise::binary("Add", Binary::Add)),
            vec![Some(x), Some(w)],
            vec![y],
        );
        [next, y].into_iter().for_each(|v| edit.add_output(v));
        let op = Loop {
            body: Body::new(graph, 3..4).unwrap(),
            carried: 1,
        };
        let assumed = |most: Option<i64>| {
            let count = Fact::new(DType::I64, Shape::default());
            let count = most.map_or(count, |n| {
                Fact::of(Arc::new(HostTensor::from_i64(&[], &[n]).unwrap()))
            });
            let vector = |size| Fact::new(DType::F32, Shape(vec![Dim::symbol(size)]));
            let (x, w) = (vector("n"), vector("m"));
            let (inputs, known) = ([Some(&count), None, Some(&x), Some(&w)], Constraints::default());
            let cx = InferCx::new(&inputs, &known);
            op.infer(&cx).unwrap();
            cx.finish().1.len()
        };
        assert_eq!([assumed(Some(2)), assumed(Some(0)), assumed(None)], [1, 0, 0]);
    }

    #[test]
    fn a_loop_of_constants_is_not_run_by_derivation() {
        let mut graph = Graph::default();
        let mut edit = Edit::new(&mut graph);
        let go = edit.add_const("go", Arc::new(HostTensor::from_bool(&[], &[true]).unwrap()));
        let x = edit.add_const("x", Arc::new(HostTensor::from_f32(&[1], &[1.0]).unwrap()));
        let outputs = ["last", "all"].map(|n| edit.add_value(n, None)).to_vec();
        let op = Box::new(double(Pointwise::binary("Add", Binary::Add)));
        edit.add_node("endless", vec![], op, vec![None, Some(go), Some(x)], outputs);
        crate::graph::derive::derive(&mut graph).unwrap();
    }

    #[test]
    fn runs_carry_and_stack() {
        let x = HostTensor::from_f32(&[2], &[1.0, -3.0]).unwrap();
        let run = |n| {
            let most = HostTensor::from_i64(&[], &[n]).unwrap();
            let results = double(Pointwise::binary("Add", Binary::Add))
                .eval(&[Some(&most), None, Some(&x)])
                .unwrap();
            results
                .iter()
                .map(|t| (t.shape().to_vec(), t.f32s().unwrap().into_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            run(2),
            [
                (vec![2], vec![4.0, -12.0]),
                (vec![2, 2], vec![2.0, -6.0, 4.0, -12.0])
            ]
        );
        assert_eq!(
            run(0),
            [(vec![2], vec![1.0, -3.0]), (vec![0, 2], vec![])],
            "no run stacks nothing"
        );
    }
}
