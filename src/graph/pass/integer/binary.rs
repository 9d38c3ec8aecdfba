//! Sums, differences and products of two activations.

use super::domain::{Domain, New, channels};
use super::shapes::{binary_axes, with_rank};
use super::values::{Quantized, known};
use super::view::View;
use super::{Built, Found, Site, refuse};
use crate::graph::op::int8_binary::{Function, Int8Binary};
use crate::graph::op::int8_layout::Int8Enter;
use crate::graph::op::pointwise::{Binary, Expr, Pointwise};
use crate::graph::{Edit, OpError};
use crate::num;
use crate::quant::fixed::Arithmetic;
use crate::tensor::HostTensor;

#[derive(Debug)]
struct TwoOperands {
    /// Their shapes are padded to the rank of the result.
    operands: [Quantized; 2],
    /// The axes that all of them can store last.
    axes: Vec<usize>,
    op: Int8Binary,
    to: Quantized,
}

impl Site for TwoOperands {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let stored = self.operands.iter().filter_map(|q| domain.any(q)).map(|s| s.axis);
        let axis = stored
            .into_iter()
            .find(|a| self.axes.contains(a))
            .or(self.axes.first().copied());
        let axis = axis.ok_or_else(|| OpError::expected("axis to store last", "one", "none"))?;
        let mut inputs = Vec::with_capacity(3);
        for q in &self.operands {
            inputs.push(match known(edit, q.value) {
                Some(t) => {
                    let full = full_rank(&t, &self.to, axis)?;
                    let name = edit.value(q.value).name.clone();
                    Domain::entered(edit, &name, &Int8Enter { axis }, &full)?
                }
                None => domain.request(edit, q, axis)?,
            });
        }
        inputs.push(Domain::constant(
            edit,
            &format!("{}/tables", new.name),
            self.op.tables()?,
        ));
        let y = Domain::add(edit, new, self.op.clone(), &inputs);
        domain.set(&self.to, axis, y);
        Ok(())
    }
}

pub(super) fn find(view: &View<'_, '_>, op: &Pointwise, arithmetic: Arithmetic) -> Found {
    let function = match &op.expr {
        Expr::Binary(f, a, b) => match (f, &**a, &**b) {
            (Binary::Add, Expr::Input(0), Expr::Input(1)) => Function::Add,
            (Binary::Sub, Expr::Input(0), Expr::Input(1)) => Function::Sub,
            (Binary::Mul, Expr::Input(0), Expr::Input(1)) => Function::Mul,
            _ => return Err(refuse("a binary operator other than Add, Sub or Mul")),
        },
        _ => return Err(refuse("a function of several operands without an integer form")),
    };
    let to = view.result()?;
    let mut operands = [view.operand(0)?, view.operand(1)?];
    for q in &mut operands {
        let rank = to.to.shape.len();
        if q.shape.len() < rank && !view.is_known(q.value) {
            return Err(refuse("operands of different ranks"));
        }
        q.shape = with_rank(&q.shape, rank);
    }
    let both = operands
        .each_ref()
        .map(|q| (&q.shape[..], view.is_known(q.value)));
    let axes = binary_axes(both, &to.to.shape);
    if axes.is_empty() {
        return Err(refuse("a broadcast that integer kernels do not support"));
    }
    let maps = operands.each_ref().map(|q| q.map);
    let op = Int8Binary::new(function, arithmetic, maps, to.to.map.scale, to.output(arithmetic));
    Ok(Box::new(TwoOperands {
        operands,
        axes,
        op: op.ok_or_else(|| refuse("scales that are too far apart"))?,
        to: to.to,
    }))
}

/// A constant operand with as many axes as the result, repeated along `axis`.
fn full_rank(t: &HostTensor, to: &Quantized, axis: usize) -> Built<HostTensor> {
    let mut shape = vec![1; to.shape.len().saturating_sub(t.shape().len())];
    shape.extend(t.shape());
    let wanted = num::exact::<usize, _>(channels(to, axis)?, "a number of channels")?;
    let t = t.reshape(&shape)?;
    if shape.get(axis) == Some(&wanted) {
        return Ok(t);
    }
    // One element serves all channels.
    let (outer, _, inner) = crate::graph::op::around(&shape, axis)?;
    let bytes = t.bytes()?;
    let mut out = Vec::with_capacity(outer * wanted * inner);
    for part in bytes.chunks(inner.max(1)) {
        for _ in 0..wanted {
            out.extend_from_slice(part);
        }
    }
    shape[axis] = wanted;
    Ok(HostTensor::from_bytes(t.dtype(), &shape, &out)?)
}
