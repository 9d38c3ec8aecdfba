//! Matrix product with an E0M weight, of any of its widths (own domain, `MatMulE0M`): operands `x [.., K]`, codes, scales in the layout
//! of [`crate::quant`]; attributes `bits`, `group_size`.
//!
//! Two kernel families (paper, section 2.2): `matvec_e0m` for one row (decode), `matmul_e0m` for many (prefill), each with a variant for
//! devices with matrix units (the module `units`). On phones with fast half arithmetic they take weights of few bits in pairs of halves: the
//! define `PAIRS`, and `matmul_e0m_pairs`. A weight above what a kernel can bind is split by columns. Activations may be taken in bytes (the
//! module `int8`).

mod int8;
mod tune;
mod units;

pub use units::FEW_ROWS;

use super::case::{Case, constant, input};
use super::norm;
use super::rms_norm::RmsNorm;
use super::sizes::Sizes;
use super::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::backend::kernel::{Form, Kernel};
use crate::backend::{Caps, DeviceKind, wave};
use crate::plan::lower::{Call, LowerCx, Operand, Pack};
use crate::quant::{Bits, ByGroup, GROUP_STEP, Method, Packed, decode_rows};
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::product::gemm;
use crate::tensor::{DType, HostTensor};
use half::f16;

/// One row. Only with PARTS does it read the fields from `end0` to `start2`.
static VECTOR: Kernel = crate::kernel!(matvec_e0m {
    n: U32, steps: U32, panel: U32, column: U32,
    end0: U32, end1: U32, start1: U32, start2: U32, epsilon: F32,
} [x: In Elem, gain: OptionalIn Elem, codes: Weight Words4, scales: Weight Words4,
   codes2: OptionalWeight Words4, scales2: OptionalWeight Words4, y: Part Elem])
.with_forms(&[
    Form {
        // A stretch as one run of loads, which takes registers that compilers may not have.
        define: "WHOLE",
        needs: |caps| caps.kind != DeviceKind::Cpu,
    },
    Form {
        // Weights in pairs of halves.
        define: "PAIRS",
        needs: Caps::fast_half,
    },
    Form {
        // Each lane of a sub-group loads other elements of the row for all.
        define: "BROADCAST",
        needs: Caps::lane_broadcast,
    },
    wave::FORM,
]);

/// Its operand of codes.
const VECTOR_CODES: usize = 2;

/// Many rows; the same.
static MATRIX: Kernel = crate::kernel!(matmul_e0m {
    m: U32, n: U32, k: U32, panel: U32, y_stride: U32, column: U32,
    end0: U32, end1: U32, start1: U32, start2: U32,
} [x: In Elem, codes: Weight Words4, scales: Weight Words4, y: Part Elem])
.with_forms(&[
    Form {
        // Each lane of a sub-group loads another row for all.
        define: "BROADCAST",
        needs: Caps::lane_broadcast,
    },
    wave::FORM,
]);

/// Its operand of codes.
const MATRIX_CODES: usize = 1;

/// Many rows in halves, 2 columns a work-item; the same.
static PAIRS: Kernel = crate::kernel!(matmul_e0m_pairs {
    m: U32, n: U32, k: U32, panel: U32, y_stride: U32, column: U32,
    end0: U32, end1: U32, start1: U32, start2: U32,
} [x: In Elem, codes: Weight Words4, scales: Weight Words4, y: Part Elem])
.variant_of(&MATRIX, |caps| caps.fast_half() && caps.few_registers());

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMulE0m {
    /// Format.
    pub bits: Bits,
    /// Weights of a group.
    pub group: usize,
    /// Rows of `x` become signed bytes first, each block of at most [`ACTIVATIONS`] places with a factor of its own (set by the pass
    /// `int8_activations`; weights of 4 and 8 bits).
    pub int8: bool,
    /// Rows of `x` are normalised first, by the last operand and with this epsilon ([`RmsNorm`]; set by the pass `normed_product`).
    pub norm: Option<f32>,
}

/// Bits and group size of a node of our domain.
pub(super) fn import_format(a: &dyn Attributes) -> OpResult<(Bits, usize)> {
    let need = |name: &str| -> OpResult<i64> {
        a.int(name)?
            .ok_or_else(|| OpError::expected(format!("attribute `{name}`"), "an integer", "nothing"))
    };
    let bits = need("bits")?;
    let bits =
        Bits::new(bits).ok_or_else(|| OpError::expected("attribute `bits`", "2, 3, 4, 5, 6 or 8", bits))?;
    let group = need("group_size")?;
    let group = usize::try_from(group)
        .ok()
        .filter(|g| *g > 0 && g.is_multiple_of(GROUP_STEP))
        .ok_or_else(|| {
            OpError::expected(
                "attribute `group_size`",
                format!("a multiple of {GROUP_STEP}"),
                group,
            )
        })?;
    Ok((bits, group))
}

/// K and N of packed operands, checked against each other.
pub(super) fn packed_size(bits: Bits, group: usize, codes: &Fact, scales: &Fact) -> OpResult<(usize, usize)> {
    let shapes = (codes.shape.as_fixed(), scales.shape.as_fixed());
    let (Some(c), Some(s)) = shapes else {
        return Err(OpError::expected(
            "codes and scales",
            "constant shapes",
            format!("{codes} and {scales}"),
        ));
    };
    let mismatch = || {
        let what = "codes (u32[K * bits / 32, N]) and scales (f16[groups, N, 2])";
        OpError::mismatch(what, codes, scales)
    };
    let (&[rows, n], &[groups, n2, 2]) = (c.as_slice(), s.as_slice()) else {
        return Err(mismatch());
    };
    let k = bits.weights(rows).filter(|k| *k > 0).ok_or_else(mismatch)?;
    let fits = n == n2 && groups == k.div_ceil(group) && n.is_multiple_of(2) && n > 0;
    if fits && codes.dtype == DType::U32 && scales.dtype == DType::F16 {
        Ok((k, n))
    } else {
        Err(mismatch())
    }
}

/// The scales as pairs.
pub(super) fn scale_pairs(scales: &HostTensor) -> OpResult<Vec<[f16; 2]>> {
    Ok(scales.f16s()?.chunks_exact(2).map(|p| [p[0], p[1]]).collect())
}

/// Weights of a stretch, unless a kernel asks for fewer.
pub(super) const STRETCH: usize = 256;

/// Most activations of a block that is quantized on its own.
pub const ACTIVATIONS: usize = 128;

/// What `common/e0m` asks for: width, planes, groups. Kernels walk in stretches of at most `most` weights, so a larger group is
/// several of them.
pub(super) fn format_defines(call: Call, bits: Bits, group: usize, most: usize) -> Call {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let stretch = stretch(group, most);
    let mut call = call
        .define("BITS", i64::from(bits.count()))
        .define("GROUP", number(stretch));
    if bits == Bits::Eight {
        call = call.define("PER4", 1);
    }
    if let ([high, ..], true) = (bits.planes(), !matches!(bits, Bits::Four | Bits::Eight)) {
        call = call.define("HIGH", i64::from(high.width));
    }
    if let [_, low] = bits.planes() {
        call = call.define("LOW", i64::from(low.width));
    }
    if stretch < group {
        call = call.define("SPAN", number(group / stretch));
    }
    call
}

/// The largest part of a group, in whole steps of kernels, of at most `most` weights, of which the group is a multiple.
fn stretch(group: usize, most: usize) -> usize {
    if group <= most {
        return group;
    }
    let mut parts = (1..=most / GROUP_STEP).rev().map(|steps| steps * GROUP_STEP);
    parts
        .find(|part| group.is_multiple_of(*part))
        .unwrap_or(GROUP_STEP)
}

/// Columns of stored rows are padded to this number, so that work-items read whole vectors.
const PAD: usize = 16;

/// A range of columns of a packed matrix on the device.
pub(super) struct Part {
    /// Words of codes.
    pub codes: Operand,
    /// Pairs of scale and bias, a word each.
    pub scales: Operand,
    /// First column.
    pub first: usize,
    /// Number of columns.
    pub count: usize,
    /// Columns of a panel (see [`Pack::Columns`]).
    pub panel: usize,
}

/// The packed matrix in the operands `codes` and those behind them, side by side where they are several, split where it exceeds
/// what a kernel can bind.
pub(super) fn packed_parts(
    cx: &mut LowerCx<'_>,
    codes: &[usize],
    bits: Bits,
    k: usize,
    n: usize,
) -> OpResult<Vec<Part>> {
    let mut parts = Vec::new();
    let scales: Vec<usize> = codes.iter().map(|i| i + 1).collect();
    for (first, count) in cx.split(n, (bits.rows(k), 4), 64)? {
        let stride = count.next_multiple_of(PAD);
        let panel = E0mShape::of(cx.caps()).panel.unwrap_or(stride);
        let pack = Pack::Columns {
            dtype: DType::U32,
            transpose: false,
            first,
            count,
            stride,
            panel,
        };
        parts.push(Part {
            codes: cx.weights(codes, pack.clone())?,
            scales: cx.weights(&scales, pack)?,
            first,
            count,
            panel,
        });
    }
    Ok(parts)
}

impl Op for MatMulE0m {
    fn name(&self) -> &str {
        "MatMulE0M"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let x = cx.fact(0)?;
        let (k, n) = packed_size(self.bits, self.group, cx.fact(1)?, cx.fact(2)?)?;
        let Some((last, before)) = x.shape.0.split_last() else {
            return Err(OpError::expected("rank of x", "1 or more", 0));
        };
        if !x.dtype.is_float() || *last != Dim::from_usize(k) {
            return Err(OpError::mismatch("inner dims", x, k));
        }
        if self.norm.is_some() {
            let gain = cx.fact(GAIN)?;
            if gain.shape.0 != [Dim::from_usize(k)] {
                return Err(OpError::mismatch("sizes of the gain", gain, k));
            }
        }
        let mut shape = before.to_vec();
        shape.push(Dim::from_usize(n));
        Ok(vec![Fact::new(x.dtype, Shape(shape))])
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        if let Some(epsilon) = self.norm {
            let (x, gain) = (operand(inputs, 0)?, operand(inputs, GAIN)?);
            let normed = RmsNorm { epsilon }.eval(&[Some(x), Some(gain)])?;
            let plain = Self {
                norm: None,
                ..self.clone()
            };
            return plain.eval(&[
                normed.first(),
                Some(operand(inputs, 1)?),
                Some(operand(inputs, 2)?),
            ]);
        }
        let (x, codes, scales) = (operand(inputs, 0)?, operand(inputs, 1)?, operand(inputs, 2)?);
        let facts = [codes, scales].map(|t| Fact::new(t.dtype(), Shape::fixed(t.shape())));
        let (k, n) = packed_size(self.bits, self.group, &facts[0], &facts[1])?;
        let mut data = match x.dtype() {
            // The weights have no more digits than single precision.
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            DType::F64 => x.f64s()?.iter().map(|v| *v as f32).collect(),
            _ => x.to_f32()?,
        };
        if self.int8 {
            data = int8::rounded(&data, k, self.activations()).into();
        }
        let (words, pairs) = (codes.u32s()?, scale_pairs(scales)?);
        let rows = data.len() / k;
        let mut y = vec![0f32; rows * n];
        // A band of rows at a time, so that the whole weight is never unpacked at once.
        let band = (1usize << 22).div_ceil(n).min(k);
        let (mut unpacked, mut part, mut sum) = (
            vec![0f32; band * n],
            vec![0f32; rows * band],
            vec![0f32; rows * n],
        );
        for first in (0..k).step_by(band) {
            let count = band.min(k - first);
            decode_rows(
                self.bits,
                self.group,
                n,
                &words,
                &pairs,
                first,
                count,
                &mut unpacked[..count * n],
            );
            for (to, from) in part.chunks_exact_mut(count).zip(data.chunks_exact(k)) {
                to.copy_from_slice(&from[first..first + count]);
            }
            gemm(
                rows,
                n,
                count,
                &part[..rows * count],
                &unpacked[..count * n],
                false,
                &mut sum,
            );
            for (y, s) in y.iter_mut().zip(&sum) {
                *y += s;
            }
        }
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        Ok(vec![HostTensor::from_floats(x.dtype(), &shape, &y)?])
    }

    fn takes_epilogue(&self) -> bool {
        true
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        let (k, n) = packed_size(self.bits, self.group, cx.fact(1)?, cx.fact(2)?)?;
        let y = cx.output(0)?;
        self.emit(cx, k, &Weights::whole(1, n, GAIN), y)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.row_products()
    }
}

/// The weights of one dispatch: one matrix, or several side by side ([`super::joint_matmul_e0m`]).
pub(super) struct Weights {
    /// Operands of codes; those of scales follow each.
    pub codes: Vec<usize>,
    /// Behind the last column of each matrix, counted over all of them.
    pub ends: Vec<usize>,
    /// First element of the result of each matrix.
    pub starts: Vec<u64>,
    /// Operand of the codes of a second matrix, of the size of the first, whose product with a row goes to the same places as
    /// [second results](crate::backend::epilogue::Argument::Other).
    pub second: Option<usize>,
    /// Operand of the factors of [`MatMulE0m::norm`], where there is one.
    pub gain: usize,
}

impl Weights {
    /// One matrix of `n` columns, of which `codes` is the operand of the codes.
    pub fn whole(codes: usize, n: usize, gain: usize) -> Self {
        Self {
            codes: vec![codes],
            ends: vec![n],
            starts: vec![0],
            second: None,
            gain,
        }
    }

    /// Columns of all matrices.
    pub fn columns(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The second matrix, of rows of `k` weights, where there is one.
    fn second_part(&self, cx: &mut LowerCx<'_>, bits: Bits, k: usize) -> OpResult<Option<Part>> {
        let Some(codes) = self.second else { return Ok(None) };
        Ok(packed_parts(cx, &[codes], bits, k, self.columns())?
            .into_iter()
            .next())
    }

    /// `call` with the fields by which a kernel finds the place of a column (`common/parts`), and which it reads where results are `in_parts`.
    fn place(&self, call: Call, in_parts: bool) -> Call {
        let end = |i: usize| Dim::from_usize(self.ends.get(i).copied().unwrap_or(self.columns()));
        let start = |i: usize| {
            let start = self.starts.get(i).copied().unwrap_or(0);
            Dim::from(i64::try_from(start).unwrap_or(i64::MAX))
        };
        let call = call.field(end(0)).field(end(1)).field(start(1)).field(start(2));
        if in_parts { call.define("PARTS", 1) } else { call }
    }
}

/// `call` of a vector kernel with its operands of a second matrix.
fn with_second(call: Call, second: Option<&Part>) -> Call {
    call.optional(second.map(|s| s.codes))
        .optional(second.map(|s| s.scales))
}

/// Operand of the factors of [`MatMulE0m::norm`] of a single product.
const GAIN: usize = 3;

/// Rows of an operand, all axes but the last together.
pub(super) fn rows(x: &Shape) -> OpResult<Dim> {
    Ok(product(x.0.split_last().map_or(&[][..], |(_, before)| before))?)
}

/// `x`, rows of `k` elements, normalised by `gain` into scratch memory of `dtype`.
fn normed(
    cx: &mut LowerCx<'_>,
    x: Operand,
    gain: Option<Operand>,
    epsilon: f32,
    (rows, k): (&Dim, usize),
    dtype: DType,
) -> OpResult<Operand> {
    let normed = cx.temp(dtype, rows.mul(&Dim::from_usize(k))?);
    let all = norm::Rows {
        rows: rows.clone(),
        cols: Dim::from_usize(k),
        place: norm::Place::Column,
        center: false,
        given: false,
        epsilon,
    };
    norm::emit_to(cx, &all, x, [gain, None, None, None], normed)?;
    Ok(normed)
}

impl MatMulE0m {
    /// Of activations as they are.
    pub const fn new(bits: Bits, group: usize) -> Self {
        Self {
            bits,
            group,
            int8: false,
            norm: None,
        }
    }

    /// The product of operand 0, whose rows have `k` elements, with `weights` into `y`. The results of several matrices are matrices
    /// of their own, one behind another, perhaps with gaps.
    pub(super) fn emit(&self, cx: &mut LowerCx<'_>, k: usize, weights: &Weights, y: Operand) -> OpResult<()> {
        let n = weights.columns();
        let rows = rows(&cx.shape(0)?)?;
        let most = cx.upper_bound(&rows);
        for (what, columns) in [("first operand", k), ("result", n)] {
            cx.countable(what, &rows.mul(&Dim::from_usize(columns))?)?;
        }
        if self.int8 {
            return self.emit_int8(cx, k, weights, y);
        }
        let (mut x, mut gain) = (cx.input(0)?, None);
        // Weights that kernels take at a time: those of a word of 4 or 8 bits.
        let step = if self.bits == Bits::Eight { 4 } else { 8 };
        let vector = rows.is(1);
        if let Some(epsilon) = self.norm {
            gain = Some(cx.input(weights.gain)?);
            let types = [x.dtype, y.dtype];
            let on_units = vector && self.vector_on_units(cx.caps(), types, [k, 1], false).is_some();
            let itself = match on_units {
                true => units::holds_row(cx.caps(), k),
                // What is not normalised yet may be too large for halves.
                false => vector && !(cx.caps().takes_form(&VECTOR, "PAIRS") && self.in_pairs(types)),
            };
            if !itself {
                let dtype = if on_units { x.dtype } else { DType::F32 };
                x = normed(cx, x, gain.take(), epsilon, (&rows, k), dtype)?;
            }
        }
        let second = weights.second_part(cx, self.bits, k)?;
        // One row of several results without gaps is one row of all.
        let mut behind = weights.starts.iter().skip(1).zip(&weights.ends);
        let gaps = behind.any(|(start, end)| *start != *end as u64);
        let in_parts = weights.ends.len() > 1 && (!vector || gaps);
        // Results are matrices of which every row begins at a multiple of four elements.
        let by_fours = weights.ends.iter().all(|end| end.is_multiple_of(4));
        for part in packed_parts(cx, &weights.codes, self.bits, k, n)? {
            let caps = cx.caps();
            let call = if vector {
                self.vector_on_units(caps, [x.dtype, y.dtype], [k, part.count], second.is_some())
            } else if by_fours {
                self.matrix_on_units(caps, [x.dtype, y.dtype], k, part.count, &rows, most)
            } else {
                None
            };
            let mut call = match call {
                Some(call) => call,
                None if vector => {
                    self.generic_vector(caps, [x.dtype, y.dtype], [k, part.count], second.is_some())?
                }
                None if self.matrix_pairs(caps, [x.dtype, y.dtype]) => {
                    self.matrix_in_pairs(part.count, &rows)?
                }
                None => self.generic_matrix(caps, k, part.count, &rows, most)?,
            };
            call = call.operand(x);
            if vector {
                call = call.optional(gain);
            }
            call = call.operand(part.codes).operand(part.scales);
            if vector {
                call = with_second(call, second.as_ref());
            }
            if gain.is_some() {
                call = call.define("DEPTH", i64::try_from(k).unwrap_or(i64::MAX));
            }
            call = call.operand(y);
            let (panel, count) = (Dim::from_usize(part.panel), Dim::from_usize(part.count));
            let call = if vector {
                call.field(count).field(Dim::from_usize(k / step)).field(panel)
            } else {
                call.field(&rows)
                    .field(count)
                    .field(Dim::from_usize(k))
                    .field(panel)
                    .field(Dim::from_usize(n))
            };
            let call = weights.place(call.field(Dim::from_usize(part.first)), in_parts);
            cx.emit(if vector {
                call.field(self.norm.unwrap_or(0.0))
            } else {
                call
            })?;
        }
        Ok(())
    }

    /// One dispatch computes the products of a row with two weights of `k x n`.
    pub(super) fn takes_two(&self, cx: &mut LowerCx<'_>, k: usize, n: usize) -> OpResult<bool> {
        let one_row = rows(&cx.shape(0)?)?.is(1);
        Ok(one_row && cx.split(n, (self.bits.rows(k), 4), 64)?.len() == 1)
    }

    /// Half arithmetic, which takes weights in pairs, errs by less than weights of so few bits and results in halves do.
    fn in_pairs(&self, types: [DType; 2]) -> bool {
        types == [DType::F16; 2] && self.bits.count() <= 4
    }

    /// The kernel of many rows takes weights in pairs: with more registers the one in single precision needs fewer instructions.
    fn matrix_pairs(&self, caps: &Caps, types: [DType; 2]) -> bool {
        caps.takes(&PAIRS) && self.in_pairs(types)
    }

    /// The vector kernel that any device takes, for a `k x n` weight, or `two` of them.
    fn generic_vector(
        &self,
        caps: &Caps,
        types: [DType; 2],
        [k, n]: [usize; 2],
        two: bool,
    ) -> OpResult<Call> {
        if let Some(call) = self.vector_by_broadcast(caps, [k, n])? {
            return Ok(call);
        }
        let pairs = caps.takes_form(&VECTOR, "PAIRS") && self.in_pairs(types);
        let tuning = tune::vector(self, caps, k, n);
        let tile = E0mShape::of(caps).with_vector(&tuning);
        let columns = tile.lanes * tile.vector_columns;
        let (items, most) = tile.slices(caps, k, n, self.group, tile == E0mShape::of(caps));
        let fold = items >= FOLD * columns;
        // Every other slice takes the second weight.
        let items = match two {
            true if items == tile.lanes || items * 2 <= caps.max_workgroup.min(E0mShape::MOST) => items * 2,
            _ => items,
        };
        let by_image = !two && tuning.tunable.is_by_image(&tuning.choice);
        let call = Call::new(&VECTOR, items);
        // Pairs are read by eights, from the buffer.
        let call = if pairs {
            call.define("PAIRS", 1)
        } else {
            call.reads_by_fours(0)
        };
        let call = if by_image {
            call.reads_by_fours(VECTOR_CODES)
        } else {
            call
        };
        let call = format_defines(call, self.bits, self.group, most)
            .define("LANES", i64::from(tile.lanes))
            .define("COLS", i64::from(tile.vector_columns))
            .grid(Dim::from_usize(n).ceil_div(i64::from(columns))?, 1, 1)
            .tuned_by(tuning);
        let call = if fold {
            call.define("FOLD", i64::from(FOLD))
        } else {
            call
        };
        // A run of loads takes more registers than all threads of a phone's GPU have; so do reads of images, which are all moved to the front of
        // a loop that is unrolled.
        let in_turn = if by_image {
            true
        } else if pairs {
            caps.few_registers()
        } else {
            caps.images_of(&VECTOR).is_some()
        };
        Ok(if caps.takes_form(&VECTOR, "WHOLE") && !in_turn {
            call.define("WHOLE", 1)
        } else {
            call
        })
    }

    /// The vector kernel where lanes share what they load, for a `k x n` weight; `None` where it does not suit device or weight.
    fn vector_by_broadcast(&self, caps: &Caps, [k, n]: [usize; 2]) -> OpResult<Option<Call>> {
        /// Elements of the row that the eight lanes load together.
        const TOGETHER: usize = 32;
        let whole = [k, stretch(self.group, STRETCH)]
            .iter()
            .all(|d| d.is_multiple_of(TOGETHER));
        if !caps.takes_form(&VECTOR, "BROADCAST") || !whole {
            return Ok(None);
        }
        let call = Call::new(&VECTOR, BROADCAST_ITEMS)
            .reads_by_fours(0)
            .reads_by_fours(1);
        let call = format_defines(call, self.bits, self.group, STRETCH)
            .define("BROADCAST", 1)
            .define("LANES", i64::from(BROADCAST_ITEMS))
            .define("COLS", 8);
        let columns = i64::from(8 * BROADCAST_ITEMS);
        Ok(Some(call.grid(Dim::from_usize(n).ceil_div(columns)?, 1, 1)))
    }

    /// The matrix kernel where lanes share what they load, for `rows`, at most `most`, and a weight of `n` columns.
    fn matrix_by_broadcast(&self, n: usize, rows: &Dim, most: Option<i64>) -> OpResult<Call> {
        let tall = most.is_none_or(|n| n > 8);
        let each = if tall { 16 } else { 8 };
        let call = Call::new(&MATRIX, BROADCAST_ITEMS).reads_by_fours(0);
        let call = format_defines(call, self.bits, self.group, STRETCH)
            .define("BROADCAST", 1)
            .define("ROWS", each)
            .define("COLS", 4);
        let groups = Dim::from_usize(n).ceil_div(i64::from(4 * BROADCAST_ITEMS))?;
        let call = call.grid(groups, rows.ceil_div(each)?, 1);
        Ok(if tall { call.define("TALL", 1) } else { call })
    }

    /// The matrix kernel that any device takes, for `rows`, at most `most`, and a `k x n` weight.
    fn generic_matrix(
        &self,
        caps: &Caps,
        k: usize,
        n: usize,
        rows: &Dim,
        most: Option<i64>,
    ) -> OpResult<Call> {
        if caps.takes_form(&MATRIX, "BROADCAST") && self.bits != Bits::Eight {
            return self.matrix_by_broadcast(n, rows, most);
        }
        let tuning = tune::matrix(self, caps, k, n, most);
        let tile = E0mShape::of(caps).with_matrix(&tuning);
        let columns = tile.matrix_items * tile.matrix_columns;
        let call = Call::new(&MATRIX, tile.matrix_items);
        let groups = Dim::from_usize(n).ceil_div(i64::from(columns))?;
        let call = match tuning.tunable.is_by_image(&tuning.choice) {
            true => call.reads_by_fours(MATRIX_CODES),
            false => call,
        };
        let call = format_defines(call, self.bits, self.group, STRETCH)
            .reads_by_fours(0)
            .define("ROWS", tile.rows)
            .define("COLS", i64::from(tile.matrix_columns))
            .grid(groups, rows.ceil_div(tile.rows)?, 1)
            .tuned_by(tuning);
        Ok(if tile.rows < 8 {
            call.define("HALF_TILE", 1)
        } else {
            call
        })
    }

    /// The matrix kernel in halves, for a weight of `n` columns.
    fn matrix_in_pairs(&self, n: usize, rows: &Dim) -> OpResult<Call> {
        const ITEMS: u32 = 32;
        /// Rows of a work-item: so many as registers have room for.
        const ROWS: i64 = 6;
        let even = (stretch(self.group, STRETCH) / GROUP_STEP).is_multiple_of(2);
        let groups = Dim::from_usize(n).ceil_div(2 * i64::from(ITEMS))?;
        let call = format_defines(Call::new(&PAIRS, ITEMS), self.bits, self.group, STRETCH)
            .define("PAIRS", 1)
            .define("ROWS", ROWS)
            .define("CHAIN", if even { 2 } else { 1 });
        Ok(call.grid(groups, rows.ceil_div(ROWS)?, 1))
    }
}

/// Work-items of the kernels whose lanes share what they load: a sub-group.
const BROADCAST_ITEMS: u32 = 8;

/// Sums that are left after the first of two steps of adding up.
const FOLD: u32 = 8;

/// Work-group shapes of the two kernels for a device.
#[derive(PartialEq, Eq)]
struct E0mShape {
    /// Work-items of the vector kernel.
    vector_items: u32,
    /// Of these, neighbours along the columns; the others split K.
    lanes: u32,
    /// Columns of a work-item of the vector kernel.
    vector_columns: u32,
    /// Work-items of the matrix kernel.
    matrix_items: u32,
    /// Columns of a work-item of the matrix kernel.
    matrix_columns: u32,
    /// Rows of a work-item of the matrix kernel.
    rows: i64,
    /// Columns of a panel of the stored weight; `None` keeps neighbouring columns side by side over the whole weight, as
    /// neighbouring lanes of a GPU want it.
    panel: Option<usize>,
}

impl E0mShape {
    /// With more work-items, drivers run out of registers for the loads of a stretch, and refuse.
    const MOST: u32 = 256;

    /// Work-items of the vector kernel for `k x n` weights, and the longest stretch that one of them walks at a time. A large GPU waits for
    /// memory unless there are about a thousand work-items for each compute unit: then more of them share a column, and walk less far.
    /// Without `more` the work-items are as many as they are.
    fn slices(&self, caps: &Caps, k: usize, n: usize, group: usize, more: bool) -> (u32, usize) {
        /// Work-items of a compute unit that hide the time of a load.
        const EACH: u32 = 1024;
        /// A shorter stretch pays more for its scale than for its codes.
        const LEAST: usize = 32;
        let mut items = self.vector_items;
        if !caps.fast_local {
            return (items, STRETCH);
        }
        let columns = self.lanes * self.vector_columns;
        let groups = u32::try_from(n).unwrap_or(u32::MAX).div_ceil(columns);
        let wanted = caps.assumed_units().saturating_mul(EACH);
        let most = stretch(group, STRETCH);
        let walks = |items: u32, stretch: usize| k.div_ceil(stretch) >= (items / self.lanes) as usize;
        while more
            && groups.saturating_mul(items) < wanted
            && items * 2 <= caps.max_workgroup.min(Self::MOST)
            && items * 2 * self.vector_columns * 4 <= caps.local_bytes
            && walks(items * 2, LEAST)
        {
            items *= 2;
        }
        let mut length = most;
        while !walks(items, length) {
            let shorter = stretch(group, length / 2);
            if shorter < LEAST {
                break;
            }
            length = shorter;
        }
        (items, length)
    }

    fn of(caps: &Caps) -> Self {
        match (caps.kind, caps.backend) {
            // A work-item is a loop iteration on a core: explicit vectors, no splitting of K, weights read in sequence.
            (DeviceKind::Cpu, "opencl") => Self {
                vector_items: 4,
                lanes: 4,
                vector_columns: 16,
                matrix_items: 8,
                matrix_columns: 16,
                rows: 8,
                panel: Some(16),
            },
            // Work-items are the elements of vectors, and every load is a gather: few loads a weight.
            (DeviceKind::Cpu, _) => Self {
                vector_items: 16,
                lanes: 16,
                vector_columns: 8,
                matrix_items: 16,
                matrix_columns: 4,
                rows: 8,
                panel: Some(8),
            },
            _ => Self {
                vector_items: 64,
                lanes: 8,
                vector_columns: 4,
                matrix_items: 32,
                matrix_columns: 4,
                rows: if caps.few_registers() { 4 } else { 8 },
                panel: None,
            },
        }
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    let (bits, group) = import_format(a)?;
    Ok(Box::new(MatMulE0m::new(bits, group)))
}

/// The registry's entry.
pub static DEF: OpDef = OpDef {
    onnx: &[own("MatMulE0M")],
    import,
    kernels: &[
        &VECTOR,
        &MATRIX,
        &PAIRS,
        &units::VECTOR,
        &units::MATRIX,
        &int8::QUANTIZE,
        &int8::VECTOR,
        &int8::PRODUCT,
    ],
    cases,
};

/// Packed operands of a pseudo-random K x N matrix.
pub(super) fn packed_case(bits: Bits, group: usize, k: usize, n: usize) -> Option<(HostTensor, HostTensor)> {
    scaled_case(bits, group, k, n, 1.0)
}

/// The same of weights up to about `scale`.
fn scaled_case(bits: Bits, group: usize, k: usize, n: usize, scale: f32) -> Option<(HostTensor, HostTensor)> {
    #[expect(clippy::cast_precision_loss, reason = "small test numbers")]
    let at = |i: usize, j: usize| (((i * 37 + j * 101 + i * j % 13) % 257) as f32 / 128.0 - 0.9) * scale;
    let p = Packed::quantize(bits, group, k, n, &ByGroup::from(Method::Mse), &at).ok()?;
    let codes = HostTensor::from_u32(&[bits.rows(k), n], &p.codes).ok()?;
    let flat: Vec<f16> = p.scales.iter().flatten().copied().collect();
    Some((
        codes,
        HostTensor::from_f16(&[k.div_ceil(group), n, 2], &flat).ok()?,
    ))
}

fn cases() -> Vec<Case> {
    let case = |bits, group, rows: usize, k, n| {
        let (codes, scales) = packed_case(bits, group, k, n)?;
        let op = MatMulE0m::new(bits, group);
        Some(Case::new(
            op,
            vec![input(&[1, rows, k]), constant(codes), constant(scales)],
        ))
    };
    use Bits::{Eight, Five, Four, Six, Three, Two};
    [
        (Four, 32, 1, 64, 64),
        (Four, 32, 1, 576, 130),
        (Four, 64, 1, 192, 66),
        (Four, 128, 1, 136, 10),
        (Eight, 64, 1, 96, 190),
        (Four, 32, 2, 64, 64),
        (Four, 32, 9, 96, 130),
        (Four, 128, 17, 136, 66),
        (Eight, 64, 5, 100, 34),
        (Two, 32, 1, 80, 66),
        (Three, 16, 1, 96, 10),
        (Five, 128, 1, 288, 66),
        (Six, 32, 1, 96, 130),
        (Two, 24, 3, 80, 34),
        (Three, 128, 9, 160, 66),
        (Five, 48, 5, 96, 34),
        (Six, 64, 9, 96, 130),
        (Four, 576, 1, 576, 34),
        // Whole blocks of matrix units: stretches that end early, several tiles, a part of a tile.
        (Four, 128, 1, 1056, 98),
        (Eight, 128, 1, 1040, 66),
        (Four, 128, 70, 288, 164),
        (Four, 32, 100, 1056, 260),
        (Four, 64, 140, 192, 132),
        (Eight, 64, 33, 144, 68),
        (Eight, 64, 100, 80, 4096),
        // Groups that the vector kernel cuts into stretches where many work-items share a column.
        (Four, 40, 1, 496, 66),
        (Four, 72, 1, 496, 34),
        (Five, 80, 1, 512, 34),
        (Eight, 960, 1, 960, 34),
        (Five, 288, 3, 288, 34),
        (Eight, 520, 9, 520, 10),
    ]
    .into_iter()
    .filter_map(|(b, g, r, k, n)| case(b, g, r, k, n))
    .chain(largest_halves())
    .chain(normed_cases())
    .chain(int8::cases())
    .collect()
}

/// Products of rows that are normalised, by the kernels for one row or before them.
fn normed_cases() -> Vec<Case> {
    use Bits::{Eight, Five, Four};
    let case = |bits, group, rows: usize, k, n| {
        let (codes, scales) = packed_case(bits, group, k, n)?;
        let op = MatMulE0m {
            norm: Some(1e-5),
            ..MatMulE0m::new(bits, group)
        };
        let gain = input(&[k]).range(0.5, 1.5).constant();
        Some(Case::new(
            op,
            vec![input(&[1, rows, k]), constant(codes), constant(scales), gain],
        ))
    };
    [
        case(Four, 32, 1, 576, 130),
        case(Four, 128, 1, 1056, 98),
        case(Eight, 64, 1, 1040, 66),
        case(Five, 32, 1, 96, 34),
        case(Four, 40, 1, 496, 66),
        case(Four, 32, 9, 96, 66),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Activations as large as halves can be, whose products with a step of weights must stay finite.
fn largest_halves() -> Option<Case> {
    let (codes, scales) = scaled_case(Bits::Four, 32, 96, 34, 1.0 / 256.0)?;
    let op = MatMulE0m::new(Bits::Four, 32);
    let x = input(&[1, 1, 96]).range(65_000.0, 65_500.0);
    Some(Case::new(op, vec![x, constant(codes), constant(scales)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU with so many compute units, whose local memory is fast.
    fn gpu(units: u32) -> Caps {
        Caps {
            kind: DeviceKind::Discrete,
            fast_local: true,
            units,
            ..Caps::neutral()
        }
    }

    #[test]
    fn stretches_are_whole_steps_and_parts_of_a_group() {
        for group in (GROUP_STEP..=2048).step_by(GROUP_STEP) {
            for most in GROUP_STEP..=STRETCH {
                let s = stretch(group, most);
                assert!(
                    s <= most && s.is_multiple_of(GROUP_STEP) && group.is_multiple_of(s),
                    "{s} of {group}, at most {most}"
                );
            }
            for (units, k) in [1, 8, 132, 4096]
                .into_iter()
                .flat_map(|u| [(u, 496), (u, 960), (u, 4096)])
            {
                let caps = gpu(units);
                let (items, s) = E0mShape::of(&caps).slices(&caps, k, 576, group, true);
                assert!(
                    s.is_multiple_of(GROUP_STEP) && group.is_multiple_of(s) && items <= 256,
                    "{items} work-items, {s} of {group}, k = {k}, {units} units"
                );
            }
        }
    }

    #[test]
    fn long_columns_are_shared_by_more_work_items() {
        let caps = gpu(132);
        let of = |k, n, group| E0mShape::of(&caps).slices(&caps, k, n, group, true);
        assert_eq!(of(4096, 4096, 128), (256, 128));
        assert_eq!(of(4096, 4096, 32), (256, 32));
        assert_eq!(
            of(1024, 576, 128),
            (256, 32),
            "shorter stretches, so that all have one"
        );
        assert_eq!(of(576, 576, 64), (128, 32));
        assert_eq!(of(2048, 64, 64), (256, 64));
        assert_eq!(of(496, 576, 72), (128, 72), "no part of the group is long enough");
        let small = Caps::neutral();
        assert_eq!(
            E0mShape::of(&small).slices(&small, 4096, 576, 128, true),
            (64, STRETCH)
        );
    }
}
