//! Softmax over the channels.

use super::domain::{Domain, New};
use super::shapes::softmax_axis;
use super::values::Quantized;
use super::view::View;
use super::{Built, Found, Site, refuse};
use crate::graph::Edit;
use crate::graph::op::int8_softmax::{self, Int8Softmax};
use crate::graph::op::softmax::Softmax;
use crate::quant::fixed::Affine;
use crate::tensor::HostTensor;

#[derive(Debug)]
struct Rows {
    x: Quantized,
    axis: usize,
    channels: i64,
    table: HostTensor,
    to: Quantized,
}

impl Site for Rows {
    fn build(&self, domain: &mut Domain, edit: &mut Edit<'_>, new: &New<'_>) -> Built<()> {
        let value = domain.request(edit, &self.x, self.axis)?;
        let table = Domain::constant(edit, &format!("{}/table", new.name), self.table.clone());
        let op = Int8Softmax {
            channels: self.channels,
        };
        let y = Domain::add(edit, new, op, &[value, table]);
        domain.set(&self.to, self.axis, y);
        Ok(())
    }
}

pub(super) fn find(view: &View<'_, '_>, softmax: &Softmax) -> Found {
    let (x, to) = (view.operand(0)?, view.result()?);
    let (axis, channels) = softmax_axis(softmax, &x.shape)?;
    let steps = Affine {
        scale: 1.0 / 256.0,
        zero: -128,
    };
    if to.to.map != steps || to.bounds != [f32::NEG_INFINITY, f32::INFINITY] {
        return Err(refuse(
            "a softmax output not quantized with scale 1/256 and the lowest zero point",
        ));
    }
    let table = int8_softmax::table(x.map.scale, channels);
    Ok(Box::new(Rows {
        x,
        axis,
        channels,
        table: table.ok_or_else(|| refuse("a softmax over more than 65535 elements"))?,
        to: to.to,
    }))
}
