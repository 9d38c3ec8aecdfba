//! E0M matmuls on devices with native kernels. Activations are quantized in blocks, to 8 bits or to
//! 16 bits as two planes of bytes, and multiplied by bytes of weights; or they stay floats.

use super::{ActivationType, PAD, QuantizedMatMul, Weights, normed, packed_parts, rows};
use crate::graph::op::OpResult;
use crate::kernels::product_e0m::{FLOAT_PRODUCT, FloatArgs, PRODUCT, ProductArgs, QUANTIZE, QuantizeArgs};
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::quant::Bits;
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

    /// Quantizes the left operand: its bytes, and the factors of each block.
    fn quantize_native(
        &self,
        cx: &mut LowerCx<'_>,
        (rows, k): (&Dim, usize),
        (planes, block): (i64, usize),
    ) -> OpResult<(Operand, Operand)> {
        let x = cx.input(0)?;
        let gain = match self.norm {
            Some(_) => Some(cx.input(self.gain())?),
            None => None,
        };
        let room = match rows.is(1) {
            true => rows.clone(),
            false => rows.add(&TILE.into())?,
        };
        let words = planes * num::signed(k.next_multiple_of(8) / 4);
        let y = cx.temp(DType::U32, room.mul(&words.into())?);
        let blocks = num::signed(k.div_ceil(block));
        let factors = cx.temp(DType::U32, room.mul(&(2 * blocks).into())?);
        let mut call = Call::new(&QUANTIZE, 1)
            .define("BLOCK", num::signed(block))
            .define("PLANES", planes)
            .may_be_padded();
        if self.format.bits == Bits::Eight {
            call = call.define("PER4", 1);
        }
        if self.norm.is_some() {
            call = call.define("NORM", 1);
        }
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

    /// Like [`QuantizedMatMul::emit`].
    pub(super) fn emit_native(&self, cx: &mut LowerCx<'_>, weights: &Weights, y: Operand) -> OpResult<()> {
        let (rows, k, n) = (rows(&cx.shape(0)?)?, weights.k, weights.columns());
        let block = self.scaled_block();
        let x = match (self.planes(), self.norm) {
            (Some(planes), _) => {
                let (x, factors) = self.quantize_native(cx, (&rows, k), (planes, block))?;
                (x, Some((factors, planes)))
            }
            (None, None) => (cx.input(0)?, None),
            (None, Some(epsilon)) => {
                let (x, gain) = (cx.input(0)?, Some(cx.input(self.gain())?));
                (normed(cx, x, gain, epsilon, (&rows, k), DType::F32)?, None)
            }
        };
        let second = weights.second_part(cx, self.format.bits)?;
        for part in packed_parts(cx, &weights.codes, self.format.bits, k, n)? {
            let [end0, end1, start1, start2] = weights.column_fields()?;
            /// The arguments of a kernel: those that both kernels have, and its own.
            macro_rules! args {
                ($Args:ident { $($own:ident $(: $value:expr)?),* $(,)? }) => {
                    $Args {
                        x: x.0,
                        $($own $(: $value)?,)*
                        codes: part.codes,
                        scales: part.scales,
                        codes2: second.as_ref().map(|s| s.codes),
                        scales2: second.as_ref().map(|s| s.scales),
                        y,
                        m: rows.clone(),
                        n: Dim::from_usize(part.count),
                        k: Dim::from_usize(k),
                        y_stride: Dim::from_usize(n),
                        column: Dim::from_usize(part.first),
                        end0,
                        end1,
                        start1,
                        start2,
                    }
                };
            }
            match x.1 {
                Some((factors, planes)) => {
                    let call = Call::new(&PRODUCT, 1)
                        .define("BLOCK", num::signed(block))
                        .define("PLANES", planes);
                    cx.emit(self.format_native(call, weights), args!(ProductArgs { factors }))?;
                }
                None => {
                    let call = self.format_native(Call::new(&FLOAT_PRODUCT, 1), weights);
                    cx.emit(call, args!(FloatArgs {}))?;
                }
            }
        }
        Ok(())
    }

    /// Adds the format of the weights to a call.
    fn format_native<A>(&self, call: Call<A>, weights: &Weights) -> Call<A> {
        let call = call
            .define("BITS", i64::from(self.format.bits.count()))
            .define("GROUP", num::signed(self.format.group))
            .may_be_padded();
        match weights.ends.len() > 1 {
            true => call.define("PARTS", 1),
            false => call,
        }
    }
}
