//! Matmuls of two activations.

use super::domain::{Domain, New};
use super::shapes::summed;
use super::values::Quantized;
use super::view::View;
use super::{Built, Found, Site, product, refuse};
use crate::graph::Edit;
use crate::graph::op::int8_matmul::Int8MatMul;
use crate::graph::op::matmul::MatMul;
use crate::quant::fixed::{Arithmetic, Factor};

#[derive(Debug)]
struct Activations {
    /// The second one is `[.., n, k]` if `transposed`.
    operands: [Quantized; 2],
    transposed: bool,
    op: Int8MatMul,
    to: Quantized,
}

impl Site for Activations {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let ([a, b], to) = (&self.operands, &self.to);
        let last = b.shape.len().saturating_sub(1);
        let k = if self.transposed {
            last
        } else {
            last.saturating_sub(1)
        };
        let inputs = [
            domain.request(edit, a, a.shape.len().saturating_sub(1))?,
            domain.request(edit, b, k)?,
        ];
        let y = Domain::add(edit, new, self.op.clone(), &inputs);
        domain.set(to, to.shape.len().saturating_sub(1), y);
        Ok(())
    }
}

pub(super) fn find(view: &View<'_, '_>, matmul: &MatMul, arithmetic: Arithmetic) -> Found {
    if view.is_constant(1) {
        return product::matmul(view, matmul, arithmetic);
    }
    let a = view.operand(0)?;
    let b = view.operand(1)?;
    let k = summed(&a.shape, &b.shape, matmul.trans_b)?;
    let to = view.result()?;
    let factor = Factor::of_scales(arithmetic, a.map.scale, b.map.scale, to.to.map.scale);
    let op = Int8MatMul {
        k,
        a_zero: a.map.zero,
        b_zero: b.map.zero,
        factor: factor.ok_or_else(|| refuse("an output scale far below the product of the input scales"))?,
        output: to.output(arithmetic),
    };
    Ok(Box::new(Activations {
        operands: [a, b],
        transposed: matmul.trans_b,
        op,
        to: to.to,
    }))
}
