//! Convolutions as products of weights and windows, computed in tiles by way of local memory.

use super::{Line, parts, window};
use crate::backend::kernel::Kernel;
use crate::graph::op::OpResult;
use crate::graph::op::local_tile::Tile;
use crate::plan::lower::{Call, LowerCx, Pack};
use crate::shape::Dim;
use crate::tensor::DType;

/// The kernel; its operands are named as the tile's.
pub(super) static KERNEL: Kernel = crate::kernel!(conv_tiled {
    m: U32, n: U32, k: U32, b_stride: U32,
    in_h: U32, in_w: U32, out_w: U32, pad_h: I32, pad_w: I32,
    outputs: U32, first: U32, groups: U32, first_group: U32, all_groups: U32,
} [a: In Elem, b: In Elem, bias: OptionalIn Elem, y: InOut Single]);

/// Output channels of a group, and terms of a sum, of which there must be as many for a tile to pay.
const LEAST: [usize; 2] = [8, 16];

/// Results of a plane without a bound.
const PLANE: i64 = 64 * 64;

/// Emits the convolution of operand 0 by operand 1 in `group` groups of `rows` output and `channels` input channels, plus operand 2;
/// false where the sizes or the device make tiles no gain, and nothing is emitted.
pub(super) fn emit(
    cx: &mut LowerCx<'_>,
    lines: &[Line; 2],
    group: usize,
    rows: usize,
    channels: &Dim,
) -> OpResult<bool> {
    let (x, w, [h, v]) = (cx.shape(0)?, cx.fact(1)?.clone(), lines);
    let (n, _, _) = parts("the input", &x.0)?;
    let depth = channels.mul(&(h.kernel.saturating_mul(v.kernel)).into())?;
    let terms = window::number(&depth)?;
    let columns = h.out.mul(&v.out)?;
    let batches = n.mul(&Dim::from_usize(group))?;
    let [most, most_batches] = [&columns, &batches].map(|d| cx.upper_bound(d));
    let tile = Tile::of(
        cx.caps(),
        i64::try_from(rows).ok(),
        most.or(Some(PLANE)),
        most_batches,
    );
    let Some(tile) = tile.filter(|_| rows >= LEAST[0] && terms >= LEAST[1]) else {
        return Ok(false);
    };
    let constant = w.as_const().is_some();
    let outputs = rows * group;
    let mut dispatches = Vec::new();
    if constant {
        let dtype = cx.float();
        let bytes = terms.saturating_mul(if dtype == DType::F16 { 2 } else { 4 });
        // Of several groups only whole ones are computed in a dispatch.
        let unit = if group == 1 { 1 } else { rows };
        let Ok(split) = cx.split(outputs, bytes, unit) else {
            return Ok(false);
        };
        for (first, count) in split {
            let pack = Pack::Rows { dtype, first, count };
            dispatches.push((cx.weight(1, pack)?, first, count));
        }
    } else {
        dispatches.push((cx.input(1)?, 0, outputs));
    }
    let windows = !lines.iter().all(Line::is_identity);
    let fours = |d: &Dim| d.exact_div(&4.into()).is_some();
    let flags = [
        ("WINDOWS", windows),
        ("A4", fours(&depth)),
        ("B4", !windows && fours(&columns)),
        ("Y4", fours(&columns)),
        ("ODD", columns.exact_div(&2.into()).is_none()),
    ];
    for (weights, first, count) in dispatches {
        let rows = rows.min(count);
        let groups = count / rows.max(1);
        let mut call = tile.define(Call::new(&KERNEL, tile.items)).grid(
            columns.ceil_div(tile.columns)?,
            Dim::from_usize(rows).ceil_div(tile.rows)?,
            n.mul(&Dim::from_usize(groups))?,
        );
        call = window::define(call, lines);
        for (name, _) in flags.iter().filter(|(_, set)| *set) {
            call = call.define(name, 1);
        }
        call = call
            .operand(weights)
            .operand(cx.input(0)?)
            .optional(if cx.has(2) { Some(cx.input(2)?) } else { None })
            .operand(cx.output(0)?)
            .field(Dim::from_usize(rows))
            .field(&columns)
            .field(&depth)
            .field(h.size.mul(&v.size)?)
            .field(&h.size)
            .field(&v.size)
            .field(&v.out)
            .field(&h.before)
            .field(&v.before);
        let first_group = if group == 1 { 0 } else { first / rows.max(1) };
        for d in [outputs, first, groups, first_group, group] {
            call = call.field(Dim::from_usize(d));
        }
        cx.emit(call)?;
    }
    Ok(true)
}
