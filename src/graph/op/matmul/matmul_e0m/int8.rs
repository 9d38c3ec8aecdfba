//! E0M matmuls with int8 activations, which devices multiply four at a time ("W4A8"; Arm's paper,
//! section IV, quantizes a row of activations by its largest magnitude). Here a row has one scale
//! per block of at most [`ACTIVATIONS`](super::ACTIVATIONS) elements, no longer than a group of
//! weights. Integer sums end with each group anyway, and a large activation only costs its
//! neighbours precision.

use super::lower::{Left, LeftForm, Part};
use super::{ActivationType, QuantizedMatMul, format_defines, k_block, tune};
use crate::backend::kernel::Kernel;
use crate::backend::tunable::Tuning;
use crate::graph::op::OpResult;
use crate::kernels::matmul_e0m::PER4;
use crate::kernels::matmul_e0m::int8::{MatrixArgs, PRODUCT, QUANTIZE, QuantizeArgs, VECTOR, VectorArgs};
use crate::kernels::product_e0m::BLOCK;
use crate::lower::{Call, DeviceProfile, LowerCx, Operand, dots};
use crate::num;
use crate::quant::{Bits, to_bytes};
use crate::shape::Dim;
use crate::tensor::DType;

/// Quantizes `data`, rows of `k` activations, in blocks of `block` and decodes it again.
pub(super) fn rounded(data: &[f32], k: usize, block: usize) -> Vec<f32> {
    let blocks = data.chunks(k.max(1)).flat_map(|row| row.chunks(block.max(1)));
    let mut out = Vec::with_capacity(data.len());
    for block in blocks {
        let (codes, scale) = to_bytes(block);
        out.extend(codes.map(|c| f32::from(c) * scale));
    }
    out
}

impl QuantizedMatMul {
    /// Whether kernels multiply weights of this width with such activations.
    pub fn supports(&self, activations: ActivationType) -> bool {
        activations != ActivationType::Int8 || matches!(self.format.bits, Bits::Four | Bits::Eight)
    }

    /// Number of activations per quantization block.
    pub(super) fn scaled_block(&self) -> usize {
        k_block(self.format.group, super::ACTIVATIONS)
    }

    /// Quantizes the left operand: its bytes, and a scale and a sum for each block of them.
    fn quantized(
        &self,
        cx: &mut LowerCx<'_>,
        x: Operand,
        rows: &Dim,
        k: usize,
    ) -> OpResult<(Operand, Operand)> {
        const ITEMS: u32 = 16;
        let block = self.scaled_block();
        let blocks = rows.mul(&Dim::from_usize(k.div_ceil(block)))?;
        let y = cx.temp(DType::U32, rows.mul(&Dim::from_usize(k / 4))?);
        let factors = cx.temp(DType::U32, blocks.mul(&2.into())?);
        let mut call = Call::new(&QUANTIZE, ITEMS).define(BLOCK, num::signed(block));
        call = call.define_if(PER4, self.format.bits == Bits::Eight);
        let args = QuantizeArgs {
            x,
            y,
            factors,
            rows: rows.clone(),
            k: Dim::from_usize(k),
        };
        cx.emit(call.grid(blocks.ceil_div(i64::from(ITEMS))?, 1, 1), args)?;
        Ok((y, factors))
    }

    /// The left operand for `k x n` weights: normalized and quantized, except for one row if the
    /// kernel can do both.
    pub(super) fn left_int8(&self, cx: &mut LowerCx<'_>, rows: &Dim, [k, n]: [usize; 2]) -> OpResult<Left> {
        let (x, gain) = self.operands(cx)?;
        let vector = rows.is(1) && {
            let tuning = tune::bytes_vector(self, cx.device(), k, n);
            VectorShape::of(&tuning).local(k, self.scaled_block()) <= cx.device().local_bytes as usize
        };
        if vector {
            return Ok((x, gain, LeftForm::Int8(None)));
        }
        let x = self.normed(cx, (x, gain), (rows, k), DType::F32)?;
        let (x, factors) = self.quantized(cx, x, rows, k)?;
        Ok((x, None, LeftForm::Int8(Some(factors))))
    }

    /// Emits the dispatch of a part, with `factors` as in [`LeftForm::Int8`].
    pub(super) fn emit_int8(
        &self,
        cx: &mut LowerCx<'_>,
        part: Part<'_>,
        factors: Option<Operand>,
    ) -> OpResult<()> {
        let Some(factors) = factors else {
            let call = part.in_parts(self.vector(cx.device(), part.size)?);
            let args = args!(part => VectorArgs { gain, codes2, scales2, panel, epsilon });
            return cx.emit(call, args);
        };
        let call = self.matrix(cx.device(), part.size, (&part.m, cx.upper_bound(&part.m)))?;
        let call = part.in_parts(call);
        cx.emit(call, args!(part => MatrixArgs { m, k, panel, y_stride; factors }))
    }

    /// The kernel for one row and a `k x n` weight.
    fn vector(&self, device: &DeviceProfile, [k, n]: [usize; 2]) -> OpResult<Call<VectorArgs>> {
        let tuning = tune::bytes_vector(self, device, k, n);
        let shape = VectorShape::of(&tuning);
        let columns = i64::from(shape.lanes * COLUMNS);
        let call = format_defines(Call::new(&VECTOR, shape.items), self.format, self.scaled_block())
            .define("DEPTH", num::signed(k))
            .define("COLS", i64::from(COLUMNS))
            .define("LANES", i64::from(shape.lanes))
            .grid(Dim::from_usize(n).ceil_div(columns)?, 1, 1)
            .tuned_by(tuning);
        Ok(written(device, &VECTOR, call))
    }

    /// The kernel for at most `most` quantized rows and a `k x n` weight.
    fn matrix(
        &self,
        device: &DeviceProfile,
        [k, n]: [usize; 2],
        (rows, most): (&Dim, Option<i64>),
    ) -> OpResult<Call<MatrixArgs>> {
        let tuning = tune::bytes_matrix(self, device, k, n, most);
        let [items, each] = match tuning.choice.as_slice() {
            &[items, each] => [items, each],
            _ => default_product(device),
        };
        let groups = Dim::from_usize(n).ceil_div(i64::from(items * COLUMNS))?;
        let call = format_defines(Call::new(&PRODUCT, items), self.format, self.scaled_block())
            .define("ROWS", i64::from(each))
            .define("COLS", i64::from(COLUMNS))
            .grid(rows.ceil_div(i64::from(each))?, groups, 1)
            .tuned_by(tuning);
        Ok(written(device, &PRODUCT, call))
    }
}

/// Columns per work-item, as many as its dot products.
const COLUMNS: u32 = 4;

/// Work-items per work-group of the kernel for any number of rows, and rows per work-item.
pub(super) fn default_product(device: &DeviceProfile) -> [u32; 2] {
    [64, most_rows(device)]
}

/// Rows per work-item on a GPU without register spills, as far as its compiler is known.
pub(super) fn most_rows(device: &DeviceProfile) -> u32 {
    match (device.few_registers, device.hoists_loads) {
        (true, true) => 2,
        (true, false) | (false, true) => 4,
        (false, false) => 8,
    }
}

/// For the kernel for one row: work-items per work-group, and how many of them are neighbours along
/// the columns.
pub(super) const DEFAULT_VECTOR: [u32; 2] = [64, 8];

/// Selects the dot products of the device.
fn written<A>(device: &DeviceProfile, kernel: &'static Kernel, call: Call<A>) -> Call<A> {
    let call = call.define_if("IN_TURN", device.hoists_loads);
    dots::select(device, kernel, call)
}

/// Work distribution of the kernel for one row.
struct VectorShape {
    /// Work-items per work-group.
    items: u32,
    /// Work-items next to each other along the columns; the others split K.
    lanes: u32,
}

impl VectorShape {
    /// The chosen shape.
    fn of(tuning: &Tuning) -> Self {
        let [items, lanes] = match tuning.choice.as_slice() {
            &[items, lanes] => [items, lanes],
            _ => DEFAULT_VECTOR,
        };
        Self { items, lanes }
    }

    /// Local memory for a row of `k` elements, in bytes.
    fn local(&self, k: usize, block: usize) -> usize {
        k + 8 * k.div_ceil(block) + self.items as usize * (4 + 4 * COLUMNS as usize)
    }
}
