//! A subgraph that runs once per index along an axis: ONNX `Scan` from opset 8. Version 8 has a
//! leading batch axis; it becomes an outer scan over the batch whose body is the scan.
//!
//! Operands: loop-carried values, then tensors of which each iteration gets one slice. The body
//! returns the next carried values, and slices of the results.

use crate::graph::body::Body;
use crate::graph::op::case::Case;
use crate::graph::op::gather::Gather;
use crate::graph::op::loop_body::{empty, stack, stacked, unrolls};
use crate::graph::op::parts::Parts;
use crate::graph::op::transpose::Transpose;
use crate::graph::op::{
    ANY, Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, as_usize, axis, gather_strided, onnx,
    operand, strides,
};
use crate::graph::{Edit, Graph, ValueId};
use crate::num;
use crate::quota;
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::HostTensor;

/// A list of axes with their directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Along {
    axes: Vec<i64>,
    backwards: Vec<bool>,
}

impl Along {
    fn new(axes: Option<Vec<i64>>, directions: Option<Vec<i64>>, count: usize) -> OpResult<Self> {
        let axes = axes.unwrap_or_else(|| vec![0; count]);
        let backwards: Vec<bool> =
            directions.map_or_else(|| vec![false; count], |d| d.iter().map(|v| *v != 0).collect());
        if axes.len() != count || backwards.len() != count {
            let found = format!("{} and {}", axes.len(), backwards.len());
            return Err(OpError::expected(
                "axes and directions",
                format!("{count} of each"),
                found,
            ));
        }
        Ok(Self { axes, backwards })
    }

    fn iter(&self) -> impl Iterator<Item = (i64, bool)> {
        self.axes.iter().copied().zip(self.backwards.iter().copied())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    pub body: Body,
    /// Number of loop-carried values.
    pub carried: usize,
    /// Axes of the sliced operands.
    pub inputs: Along,
    /// Axes of the results that are assembled from slices.
    pub outputs: Along,
}

/// Slice `i` along axis `a`, without that axis.
fn slice(x: &HostTensor, a: usize, i: usize) -> OpResult<HostTensor> {
    let mut steps = strides(x.shape());
    let mut shape = x.shape().to_vec();
    let start = i * steps.remove(a);
    shape.remove(a);
    let steps: Vec<i64> = steps.into_iter().map(num::signed).collect();
    gather_strided(x, &shape, start, &steps)
}

impl Op for Scan {
    fn name(&self) -> &str {
        "Scan"
    }

    fn runs_graphs(&self) -> bool {
        true
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let carried = (0..self.carried)
            .map(|i| cx.fact(i).cloned())
            .collect::<OpResult<Vec<_>>>()?;
        let (mut length, mut slices): (Option<Dim>, _) = (None, Vec::new());
        for (i, (a, _)) in self.inputs.iter().enumerate() {
            let x = cx.fact(self.carried + i)?;
            let mut shape = x.shape.0.clone();
            let own = shape.remove(axis(a, shape.len())?);
            length = Some(match length {
                Some(n) => cx.same("lengths", &n, &own)?,
                None => own,
            });
            slices.push(Fact::new(x.dtype, Shape(shape)));
        }
        let length = length.ok_or_else(|| OpError::expected("sliced operands", "1 or more", 0))?;
        let derived = self.body.repeated(cx, &[], &carried, &slices, 0)?;
        // A body that never runs imposes no conditions.
        if cx.constraints().at_least(&length, 1) == Some(true) {
            cx.assume(derived.assumed().cloned());
        }
        let mut facts = derived.kept(cx, &carried, 0);
        for ((a, _), each) in self.outputs.iter().zip(derived.facts.iter().skip(self.carried)) {
            let output = facts.len();
            let mut shape = each.shape.0.clone();
            shape.insert(axis(a, shape.len() + 1)?, length.clone());
            for (axis, size) in shape.iter_mut().enumerate() {
                if !derived.is_outer(size) {
                    *size = cx.unknown(output, axis, None);
                }
            }
            facts.push(Fact::new(each.dtype, Shape(shape)));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let mut carried = (0..self.carried)
            .map(|i| operand(inputs, i).cloned())
            .collect::<OpResult<Vec<_>>>()?;
        let mut sliced = Vec::new();
        for (i, (a, backwards)) in self.inputs.iter().enumerate() {
            let x = operand(inputs, self.carried + i)?;
            sliced.push((x, axis(a, x.shape().len())?, backwards));
        }
        let length = |(x, a, _): &(&HostTensor, usize, bool)| x.shape()[*a];
        let n = sliced.first().map_or(0, length);
        if let Some(other) = sliced.iter().map(length).find(|m| *m != n) {
            return Err(OpError::mismatch("lengths", n, other));
        }
        let mut parts = vec![Vec::with_capacity(n); self.outputs.axes.len()];
        for run in 0..n {
            quota::iterate()?;
            let mut given = std::mem::take(&mut carried);
            for (x, a, backwards) in &sliced {
                given.push(slice(x, *a, if *backwards { n - 1 - run } else { run })?);
            }
            let mut results = self.body.eval(given, inputs)?.into_iter();
            carried = results.by_ref().take(self.carried).collect();
            for (list, value) in parts.iter_mut().zip(results) {
                list.push(value);
            }
        }
        for (k, (mut list, (a, backwards))) in parts.into_iter().zip(self.outputs.iter()).enumerate() {
            if backwards {
                list.reverse();
            }
            let Some(all) = stack(&list)? else {
                carried.push(empty(self, inputs, self.carried + k)?);
                continue;
            };
            // Stacking adds the new axis first; move it to `to`.
            let to = axis(a, all.shape().len())?;
            let mut perm: Vec<i64> = (1i64..).take(all.shape().len() - 1).collect();
            perm.insert(to, 0);
            carried.extend(Transpose { perm: Some(perm) }.eval(&[Some(&all)])?);
        }
        Ok(carried)
    }

    fn parts(&self, cx: &mut Parts<'_, '_>) -> OpResult<Option<Vec<ValueId>>> {
        let mut carried = (0..self.carried)
            .map(|i| cx.input(i))
            .collect::<OpResult<Vec<_>>>()?;
        let (mut length, mut sliced) = (None, Vec::new());
        for (i, (a, backwards)) in self.inputs.iter().enumerate() {
            let x = cx.input(self.carried + i)?;
            let shape = cx.fact(x)?.shape;
            let a = axis(a, shape.rank())?;
            let own = shape.0.get(a).and_then(as_usize);
            // Lengths that are not known to be equal are compared in the run.
            if own.is_none() || length.is_some_and(|n| Some(n) != own) {
                return Ok(None);
            }
            length = own;
            sliced.push((x, a, backwards));
        }
        let Some(n) = length.filter(|n| unrolls(&self.body, *n)) else {
            return Ok(None);
        };
        let mut lists = vec![Vec::with_capacity(n); self.outputs.axes.len()];
        for run in 0..n {
            let mut given = carried.clone();
            for (i, (x, a, backwards)) in sliced.iter().enumerate() {
                let at = if *backwards { n - 1 - run } else { run };
                let at = HostTensor::from_i64(&[], &[num::signed(at)])?;
                let at = cx.constant(&format!("at{i}_{run}"), at);
                let axis = num::signed(*a);
                given.push(cx.node(&format!("slice{i}_{run}"), Gather { axis }, &[Some(*x), Some(at)])?);
            }
            let mut results = cx.inline(&format!("run{run}"), &self.body, &given)?.into_iter();
            carried = results.by_ref().take(self.carried).collect();
            for (list, v) in lists.iter_mut().zip(results) {
                list.push(v);
            }
        }
        for (k, (mut list, (a, backwards))) in lists.into_iter().zip(self.outputs.iter()).enumerate() {
            if backwards {
                list.reverse();
            }
            carried.push(stacked(cx, &format!("all{k}"), &list, a)?);
        }
        Ok(Some(carried))
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let given = a.int("num_scan_inputs")?;
    let count = given
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| (1..=a.input_count()).contains(n));
    let count = count.ok_or_else(|| {
        let found = given.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
        OpError::expected(
            "attribute `num_scan_inputs`",
            format!("1 to {} (the number of operands)", a.input_count()),
            found,
        )
    })?;
    // Before opset 9, the lengths of sequences come first.
    let with_batch = a.opset() < 9;
    if with_batch && a.has_input(0) {
        return Err(OpError::Unsupported("operand 0 (`sequence_lens`)".to_owned()));
    }
    let operands = a.input_count() - usize::from(with_batch);
    let carried = operands.checked_sub(count);
    let carried =
        carried.ok_or_else(|| OpError::expected("operands", format!("{count} or more"), operands))?;
    let body = a
        .graph("body", 0)?
        .ok_or_else(|| OpError::expected("attribute `body`", "a graph", "nothing"))?;
    body.check("attribute `body`", operands, carried)?;
    let results = body.graph().outputs().len() - carried;
    let inputs = |axes, directions| Along::new(a.ints(axes)?, a.ints(directions)?, count);
    if with_batch {
        a.drop_omitted();
        let scan = Scan {
            body: Body::new(body.graph().clone(), operands..operands + body.outer().len())?,
            carried,
            inputs: inputs("axes", "directions")?,
            outputs: Along::new(None, None, results)?,
        };
        return Ok(Box::new(over_batch(scan, operands)?));
    }
    Ok(Box::new(Scan {
        body,
        carried,
        inputs: inputs("scan_input_axes", "scan_input_directions")?,
        outputs: Along::new(
            a.ints("scan_output_axes")?,
            a.ints("scan_output_directions")?,
            results,
        )?,
    }))
}

/// A scan of the batch axis of all `operands` of `scan`, which runs for each entry.
fn over_batch(scan: Scan, operands: usize) -> OpResult<Scan> {
    let outer = scan.body.outer();
    let results = scan.body.graph().outputs().len();
    let mut graph = Graph::default();
    let mut edit = Edit::new(&mut graph);
    let inputs: Vec<_> = (0..outer.end)
        .map(|i| {
            let v = edit.add_value(&format!("operand{i}"), None);
            edit.add_input(v);
            Some(v)
        })
        .collect();
    let outputs: Vec<_> = (0..results)
        .map(|i| edit.add_value(&format!("result{i}"), None))
        .collect();
    edit.add_node("entry", Vec::new(), Box::new(scan), inputs, outputs.clone());
    for v in outputs {
        edit.add_output(v);
    }
    Ok(Scan {
        body: Body::new(graph, outer)?,
        carried: 0,
        inputs: Along::new(None, None, operands)?,
        outputs: Along::new(None, None, results)?,
    })
}

pub static DEF: OpDef = OpDef {
    onnx: &[onnx("Scan", 8, ANY).outputs(ANY)],
    import,
    kernels: &[],
    cases,
};

fn cases() -> Vec<Case> {
    // Subgraphs come from models: see `tests/references/onnx_nodes.rs`.
    Vec::new()
}
