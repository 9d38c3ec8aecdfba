//! Convolution as matmul of weights and windows, tiled in local memory.

use super::{Line, parts, window};
use crate::graph::op::OpResult;
use crate::graph::op::local_tile::{Extent, LocalTile};
use crate::graph::op::matmul::over_batches;
use crate::kernels::conv::{TILED, TiledArgs};
use crate::lower::{Call, LowerCx, Operand, Pack};
use crate::shape::Dim;

/// Minimum output channels per group, and minimum terms per sum, for which tiling pays off.
const MIN_TILED: [usize; 2] = [8, 16];

/// Emits the convolution of operand 0 by operand 1, plus operand 2, in `group` groups of `rows`
/// output and `channels` input channels. Returns false and emits nothing if tiles do not pay off
/// for these sizes or this device, or if a kernel cannot bind the weights of one channel (one
/// group, if there are several).
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
    let terms = crate::graph::op::fixed_size(&depth)?;
    let columns = h.out.mul(&v.out)?;
    let batches = n.mul(&Dim::from_usize(group))?;
    let extent = Extent {
        rows: i64::try_from(rows).ok(),
        columns: cx.upper_bound(&columns),
        plane: true,
        batches: cx.upper_bound(&batches),
    };
    let tile = LocalTile::of(&TILED, cx.device(), extent);
    let Some(tile) = tile.filter(|_| rows >= MIN_TILED[0] && terms >= MIN_TILED[1]) else {
        return Ok(false);
    };
    let outputs = rows * group;
    let dispatches = if w.as_const().is_some() {
        match packed_rows(cx, (rows, outputs), terms)? {
            Some(list) => list,
            None => return Ok(false),
        }
    } else {
        vec![(cx.input(1)?, 0, outputs)]
    };
    let windows = !lines.iter().all(Line::is_identity);
    let stride = h.size.mul(&v.size)?;
    let inputs = batches.mul(channels)?.mul(&stride)?;
    let results = batches.mul(&Dim::from_usize(rows))?.mul(&columns)?;
    for (what, count) in [("input", inputs), ("result", results)] {
        cx.countable(what, &count)?;
    }
    for (weights, first, count) in dispatches {
        let rows = rows.min(count);
        let groups = count / rows.max(1);
        let batches = n.mul(&Dim::from_usize(groups))?;
        let call = Call::new(&TILED, tile.items);
        let call = tile.define(call, &depth, (!windows).then_some(&stride), &columns);
        let across = columns.ceil_div(tile.columns)?;
        let down = Dim::from_usize(rows).ceil_div(tile.rows)?;
        let mut call = window::define(over_batches(cx, call, across, down, &batches)?, lines);
        call = call.define_if("WINDOWS", windows);
        let first_group = if group == 1 { 0 } else { first / rows.max(1) };
        let args = TiledArgs {
            a: weights,
            b: cx.input(0)?,
            bias: if cx.has(2) { Some(cx.input(2)?) } else { None },
            y: cx.output(0)?,
            m: Dim::from_usize(rows),
            n: columns.clone(),
            k: depth.clone(),
            b_stride: stride.clone(),
            in_h: h.size.clone(),
            in_w: v.size.clone(),
            out_w: v.out.clone(),
            pad_h: h.before.clone(),
            pad_w: v.before.clone(),
            outputs: Dim::from_usize(outputs),
            first: Dim::from_usize(first),
            groups: Dim::from_usize(groups),
            first_group: Dim::from_usize(first_group),
            all_groups: Dim::from_usize(group),
            batches,
        };
        cx.emit(call, args)?;
    }
    Ok(true)
}

/// The weights of `outputs` output channels, `rows` a group, in ranges (operand, first, count) that
/// a kernel can bind. `None` if a group is too large.
fn packed_rows(
    cx: &mut LowerCx<'_>,
    (rows, outputs): (usize, usize),
    terms: usize,
) -> OpResult<Option<Vec<(Operand, usize, usize)>>> {
    let dtype = cx.float();
    let size = dtype.device_bytes();
    // With several groups, a dispatch computes whole groups.
    let unit = if rows == outputs { 1 } else { rows };
    let ranges = match cx.split(outputs, (terms, size), unit) {
        Ok(ranges) => ranges,
        Err(why) => {
            log::debug!("convolution \"{}\" is not tiled: {why}", cx.name());
            return Ok(None);
        }
    };
    let pack = |(first, count)| Ok((cx.weight(1, Pack::Rows { dtype, first, count })?, first, count));
    ranges.into_iter().map(pack).collect::<OpResult<_>>().map(Some)
}
