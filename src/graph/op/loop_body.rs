//! A graph that runs again and again. ONNX `Loop` from opset 1.
//!
//! Operands: the largest number of runs and whether to run at all, either left out for no limit, then the values that each
//! run takes from the one before. The body gets the number of the run, the condition, and those values; it gives the next
//! condition, the next values, and values that are stacked over the runs.

use super::case::Case;
use super::if_else::{decided, truth};
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, one_int, onnx, operand};
use crate::graph::body::Body;
use crate::shape::{Constraints, Dim, Fact, Shape};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// What runs.
    pub body: Body,
    /// Number of values that a run takes from the one before.
    pub carried: usize,
}

impl Loop {
    /// Number of values that are stacked.
    fn stacked(&self) -> usize {
        self.body.graph().outputs().len().saturating_sub(self.carried + 1)
    }
}

/// The fact of a tensor of which only type and shape are known.
pub(super) fn plain(x: &HostTensor) -> Fact {
    Fact::new(x.dtype(), Shape::fixed(x.shape()))
}

/// Type and shape of result `i` of an operator that ran no body: sizes that only a run tells are 0.
pub(super) fn empty(op: &dyn Op, inputs: &Inputs<'_>, i: usize) -> OpResult<HostTensor> {
    let facts: Vec<Option<Fact>> = inputs.iter().map(|x| x.map(plain)).collect();
    let facts: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
    let all = op.infer(&InferCx::new(&facts, &Constraints::default()))?;
    let fact = all.get(i).ok_or_else(|| OpError::expected("result", i, all.len()))?;
    let size = |d: &Dim| d.as_const().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    Ok(HostTensor::zeros(fact.dtype, &fact.shape.0.iter().map(size).collect::<Vec<_>>())?)
}

/// Tensors of one type and shape as one, along a new first axis.
pub(super) fn stack(parts: &[HostTensor]) -> OpResult<Option<HostTensor>> {
    let Some(first) = parts.first() else { return Ok(None) };
    let mut bytes = Vec::new();
    for part in parts {
        if part.dtype() != first.dtype() || part.shape() != first.shape() {
            return Err(OpError::mismatch("stacked values", format!("{first:?}"), format!("{part:?}")));
        }
        bytes.extend_from_slice(part.bytes()?);
    }
    let shape = [&[parts.len()], first.shape()].concat();
    Ok(Some(HostTensor::from_bytes(first.dtype(), &shape, &bytes)?))
}

impl Op for Loop {
    fn name(&self) -> &str {
        "Loop"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let most = match cx.opt(0).map(Fact::as_dims) {
            Some(Some(list)) => list.first().map(|n| n.maximum(&0.into())).transpose()?,
            _ => None,
        };
        // The body runs only where the condition holds.
        let yes = Fact::of(Arc::new(HostTensor::from_bool(&[], &[true])?));
        let before = [Fact::new(DType::I64, Shape::default()), yes];
        let carried = (0..self.carried).map(|i| cx.fact(2 + i).cloned()).collect::<OpResult<Vec<_>>>()?;
        let derived = self.body.repeated(cx, &before, &carried, &[], 1)?;
        let mut facts = Vec::new();
        for (i, start) in carried.iter().enumerate() {
            let mut fact = Fact::new(start.dtype, start.shape.clone());
            let next = derived.facts.get(1 + i);
            for (axis, size) in fact.shape.0.iter_mut().enumerate() {
                let same = next.and_then(|n| n.shape.0.get(axis)).is_some_and(|n| n == size && derived.is_outer(n));
                if !same {
                    *size = cx.unknown(i, axis, None);
                }
            }
            facts.push(fact);
        }
        let whole = cx.opt(1).is_none_or(|c| decided(c) == Some(true))
            && derived.facts.first().and_then(decided) == Some(true);
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
                shape.push(if outer { size.clone() } else { cx.unknown(output, axis + 1, None) });
            }
            facts.push(Fact::new(each.dtype, Shape(shape)));
        }
        Ok(facts)
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let optional = |i: usize| inputs.get(i).copied().flatten();
        let most = optional(0).map_or(Ok(i64::MAX), |n| one_int(n, "number of runs"))?;
        let mut go = optional(1).map_or(Ok(true), truth)?;
        let mut carried = (0..self.carried).map(|i| operand(inputs, 2 + i).cloned()).collect::<OpResult<Vec<_>>>()?;
        let mut stacks = vec![Vec::new(); self.stacked()];
        let mut run = 0;
        while go && run < most {
            let mut given = vec![HostTensor::from_i64(&[], &[run])?, HostTensor::from_bool(&[], &[true])?];
            given.append(&mut carried);
            let mut results = self.body.eval(given, inputs)?.into_iter();
            go = truth(&results.next().ok_or_else(|| OpError::expected("condition", "a truth value", "nothing"))?)?;
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
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let carried = a.input_count().saturating_sub(2);
    let body = a.graph("body", 2)?.ok_or_else(|| OpError::expected("attribute `body`", "a graph", "nothing"))?;
    body.check("attribute `body`", carried + 2, carried + 1)?;
    Ok(Box::new(Loop { body, carried }))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef { onnx: &[onnx("Loop", 1)], import, kernels: &[], cases };

fn cases() -> Vec<Case> {
    // Graphs come from models: `tests/onnx_nodes.rs`.
    Vec::new()
}
