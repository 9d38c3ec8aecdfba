//! Convolutions with constant weights on devices with native kernels.

use super::window::{self, Line};
use crate::graph::op::{OpResult, fixed_size};
use crate::kernels::conv::{DEPTHWISE, DepthwiseArgs, PANELS, PanelArgs};
use crate::lower::{Call, LowerCx, Pack};
use crate::num;
use crate::shape::Dim;
use crate::tensor::DType;

/// Output channels of a tile of weights.
const TILE: usize = 6;

/// Emits the convolution of operand 0 by the constant operand 1, plus operand 2, for images of
/// which there are `images`. Groups have `rows` output channels and `channels` input channels.
pub(super) fn emit(
    cx: &mut LowerCx<'_>,
    [h, v]: &[Line; 2],
    images: &Dim,
    group: i64,
    rows: usize,
    channels: &Dim,
) -> OpResult<()> {
    let groups = fixed_size(&group.into())?;
    let x = cx.input(0)?;
    let bias = if cx.has(2) { Some(cx.input(2)?) } else { None };
    let y = cx.output(0)?;
    let lines = [h.clone(), v.clone()];
    /// The arguments of a kernel: those that both kernels have, and its own.
    macro_rules! args {
        ($Args:ident { $($own:ident $(: $value:expr)?),* $(,)? }) => {
            $Args {
                x,
                bias,
                y,
                images: images.clone(),
                rows: Dim::from_usize(rows),
                in_h: h.size.clone(),
                in_w: v.size.clone(),
                out_h: h.out.clone(),
                out_w: v.out.clone(),
                pad_h: h.before.clone(),
                pad_w: v.before.clone(),
                $($own $(: $value)?,)*
            }
        };
    }
    cx.countable("rows and columns of the input", &h.size.mul(&v.size)?)?;
    // Else most of the rows that the kernel copies are not read.
    let is_compact = |l: &Line| l.stride <= l.kernel && (l.kernel - 1).saturating_mul(l.dilation) < 256;
    if channels.is(1) && lines.iter().all(is_compact) {
        let w = cx.weight(1, Pack::Plain { dtype: DType::F32 })?;
        let call = window::define(Call::new(&DEPTHWISE, 1), &lines);
        let channels = Dim::from_usize(groups);
        return cx.emit(call, args!(DepthwiseArgs { w, channels }));
    }
    let tiles = Pack::Tiles {
        dtype: DType::F32,
        rows,
        tile: TILE,
        first: 0,
        count: rows.div_ceil(TILE) * groups,
    };
    let w = cx.weight(1, tiles)?;
    let call =
        window::define(Call::new(&PANELS, 1), &lines).define(crate::kernels::conv::TILE, num::signed(TILE));
    let groups = Dim::from_usize(groups);
    cx.emit(
        call,
        args!(PanelArgs {
            w,
            groups,
            channels: channels.clone(),
        }),
    )
}
