//! E0M matmuls on devices with native kernels. Activations are quantized in blocks, to 8 bits or to
//! 16 bits as two planes of bytes, and multiplied by bytes of weights; or they stay floats.

use super::lower::{Left, LeftForm, Part};
use super::{ActivationType, PAD, QuantizedMatMul};
use crate::graph::op::OpResult;
use crate::kernels::matmul_e0m::{BITS, GROUP, NESTED, PER4};
use crate::kernels::product_e0m::{
    BLOCK, FLOAT_PRODUCT, FloatArgs, NORM, PLANES, PRODUCT, ProductArgs, QUANTIZE, QuantizeArgs,
};
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::quant::{Bits, Scales};
use crate::shape::Dim;
use crate::tensor::{DType, PANEL};

const _: () = assert!(PAD.is_multiple_of(PANEL), "columns fill whole panels");

/// Kernels may complete the last tile of rows up to this many rows beyond the last one.
const TILE: i64 = 15;

impl QuantizedMatMul {
    /// Bytes per quantized activation; `None` for floats.
    fn planes(&self) -> Option<i64> {
        match self.activations {
            ActivationType::Float => None,
            ActivationType::Int16 => Some(2),
            ActivationType::Int8 => Some(1),
        }
    }

    /// The left operand: quantized, or as normalized floats.
    pub(super) fn left_native(&self, cx: &mut LowerCx<'_>, rows: &Dim, k: usize) -> OpResult<Left> {
        let operands = self.operands(cx)?;
        let (x, bytes) = match self.planes() {
            Some(planes) => {
                let (x, factors) = self.quantize_native(cx, operands, (rows, k), planes)?;
                (x, Some((factors, planes)))
            }
            None => (self.normed(cx, operands, (rows, k), DType::F32)?, None),
        };
        Ok((x, None, LeftForm::Native(bytes)))
    }

    /// Quantizes the left operand: its bytes, and the factors of each block.
    fn quantize_native(
        &self,
        cx: &mut LowerCx<'_>,
        (x, gain): (Operand, Option<Operand>),
        (rows, k): (&Dim, usize),
        planes: i64,
    ) -> OpResult<(Operand, Operand)> {
        let block = self.scaled_block();
        let room = match rows.is(1) {
            true => rows.clone(),
            false => rows.add(&TILE.into())?,
        };
        let words = planes * num::signed(k.next_multiple_of(8) / 4);
        let y = cx.temp(DType::U32, room.mul(&words.into())?);
        let blocks = num::signed(k.div_ceil(block));
        let factors = cx.temp(DType::U32, room.mul(&(2 * blocks).into())?);
        let mut call = Call::new(&QUANTIZE, 1)
            .define(BLOCK, num::signed(block))
            .define(PLANES, planes)
            .may_be_padded();
        call = call.define_if(PER4, self.format.bits == Bits::Eight);
        call = call.define_if(NORM, self.norm.is_some());
        let args = QuantizeArgs {
            x,
            gain,
            y,
            factors,
            rows: rows.clone(),
            k: Dim::from_usize(k),
            epsilon: self.norm.unwrap_or(0.0),
        };
        cx.emit(call, args)?;
        Ok((y, factors))
    }

    /// Emits the dispatch of a part, with `bytes` as in [`LeftForm::Native`].
    pub(super) fn emit_native(
        &self,
        cx: &mut LowerCx<'_>,
        part: Part<'_>,
        bytes: Option<(Operand, i64)>,
    ) -> OpResult<()> {
        let Some((factors, planes)) = bytes else {
            let call = self.format_native(Call::new(&FLOAT_PRODUCT, 1), &part);
            return cx.emit(call, args!(part => FloatArgs { codes2, scales2, m, k, y_stride }));
        };
        let call = Call::new(&PRODUCT, 1)
            .define(BLOCK, num::signed(self.scaled_block()))
            .define(PLANES, planes);
        let call = self.format_native(call, &part);
        let args = args!(part => ProductArgs { codes2, scales2, m, k, y_stride; factors });
        cx.emit(call, args)
    }

    /// Adds the format of the weights to a call.
    fn format_native<A>(&self, call: Call<A>, part: &Part<'_>) -> Call<A> {
        let call = call
            .define(BITS, i64::from(self.format.bits.count()))
            .define(GROUP, num::signed(self.format.group))
            .may_be_padded();
        let call = match self.format.scales {
            Scales::Pairs => call,
            Scales::Nested(nested) => call.define(NESTED, num::signed(nested.groups())),
        };
        part.in_parts(call)
    }
}
