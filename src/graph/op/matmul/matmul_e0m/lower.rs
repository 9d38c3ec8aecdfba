//! Lowering of [`QuantizedMatMul`]: what the dispatches of all its kernels have in common.

use super::tensor_cores::Several;
use super::{ActivationType, ColumnRange, QuantizedMatMul, packed_parts, packed_size};
use crate::graph::op::pointwise::{self, ExprSource, Pointwise};
use crate::graph::op::{Op, OpResult, norm};
use crate::kernels::matmul_e0m::PARTS;
use crate::kernels::product_e0m::PRODUCT;
use crate::lower::{Call, LowerCx, Operand};
use crate::num;
use crate::quant::Format;
use crate::shape::{Dim, Shape, product};
use crate::tensor::DType;

/// The weights of one dispatch: one matrix, or several side by side.
pub(super) struct Weights {
    /// Rows of each matrix.
    pub(super) k: usize,
    /// Operands of quantized weights; each is followed by its scales.
    pub(super) codes: Vec<usize>,
    /// End column of each matrix, counted over all of them.
    pub(super) ends: Vec<usize>,
    /// First element of the result of each matrix.
    pub(super) starts: Vec<u64>,
    /// Operand of the quantized weights of a second matrix with the size of the first. Its results
    /// are passed to the epilogue as [second
    /// results](crate::backend::kernel::epilogue::Argument::Other).
    pub(super) second: Option<usize>,
}

impl Weights {
    /// Total columns of all matrices.
    pub(super) fn columns(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether the results of one row have gaps between them.
    pub(super) fn has_gaps(&self) -> bool {
        let mut behind = self.starts.iter().skip(1).zip(&self.ends);
        behind.any(|(start, end)| *start != *end as u64)
    }

    /// The second matrix, if any.
    fn second_part(&self, cx: &mut LowerCx<'_>, format: Format) -> OpResult<Option<ColumnRange>> {
        let Some(codes) = self.second else { return Ok(None) };
        let parts = packed_parts(cx, &[codes], format, self.k, self.columns())?;
        Ok(parts.into_iter().next())
    }

    /// The parameters `end0`, `end1`, `start1` and `start2`, which locate a column
    /// (`common/parts`). Kernels read them only with the define `PARTS`.
    fn column_fields(&self) -> OpResult<[Dim; 4]> {
        let end = |i: usize| Dim::from_usize(self.ends.get(i).copied().unwrap_or(self.columns()));
        let start = |i: usize| {
            let start = self.starts.get(i).copied().unwrap_or(0);
            num::exact::<i64, _>(start, "the first element of a part").map(Dim::from)
        };
        Ok([end(0), end(1), start(1)?, start(2)?])
    }
}

/// Number of rows of an operand: the product of all axes but the last.
pub(super) fn rows(x: &Shape) -> OpResult<Dim> {
    Ok(product(x.0.split_last().map_or(&[][..], |(_, before)| before))?)
}

/// The left operand as kernels read it, the scale of its normalization if the kernel normalizes,
/// and its form.
pub(super) type Left = (Operand, Option<Operand>, LeftForm);

#[derive(Clone, Copy)]
pub(super) enum LeftForm {
    /// Rows of floats, for the kernel that [`QuantizedMatMul::several_rows`] returns.
    Floats(Option<Several>),
    /// Bytes with these factors; without, one row of floats that the kernel quantizes.
    Int8(Option<Operand>),
    /// For native kernels: bytes with these factors, and how many there are per activation;
    /// without, rows of floats.
    Native(Option<(Operand, i64)>),
}

/// The dispatch for a range of columns: its arguments, of which each kernel takes some.
pub(super) struct Part<'a> {
    pub(super) weights: &'a Weights,
    /// K, and the number of columns of the range.
    pub(super) size: [usize; 2],
    pub(super) x: Operand,
    pub(super) gain: Option<Operand>,
    pub(super) codes: Operand,
    pub(super) scales: Operand,
    pub(super) codes2: Option<Operand>,
    pub(super) scales2: Option<Operand>,
    pub(super) y: Operand,
    pub(super) m: Dim,
    pub(super) n: Dim,
    pub(super) k: Dim,
    pub(super) panel: Dim,
    pub(super) y_stride: Dim,
    pub(super) column: Dim,
    pub(super) end0: Dim,
    pub(super) end1: Dim,
    pub(super) start1: Dim,
    pub(super) start2: Dim,
    pub(super) epsilon: f32,
}

impl Part<'_> {
    /// Tells a kernel whether there are several matrices.
    pub(super) fn in_parts<A>(&self, call: Call<A>) -> Call<A> {
        match self.weights.ends.len() > 1 {
            true => call.define(PARTS, 1),
            false => call,
        }
    }
}

impl QuantizedMatMul {
    /// Lowers a node, see [`Op::lower`].
    pub(super) fn lower_all(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
        if let Some(function) = &self.gate {
            return self.lower_gated(cx, function);
        }
        if self.weights == 1 {
            let (weights, y) = (self.one_weight(cx, 1)?, cx.output(0)?);
            return self.emit(cx, &weights, y);
        }
        match self.side_by_side(cx)? {
            Ok((weights, y)) => return self.emit(cx, &weights, y),
            Err(why) => log::debug!("matmuls of \"{}\" use separate dispatches: {why}", cx.name()),
        }
        let single = Self {
            weights: 1,
            ..self.clone()
        };
        for (o, codes) in self.codes().enumerate() {
            let own = [0, codes, codes + 1].into_iter();
            let own: Vec<usize> = own.chain(self.norm.map(|_| self.gain())).collect();
            cx.part(&single, &own, o)?;
        }
        Ok(())
    }

    /// One weight, with quantized weights in operand `codes`.
    fn one_weight(&self, cx: &LowerCx<'_>, codes: usize) -> OpResult<Weights> {
        let (k, n) = packed_size(self.format, cx.fact(codes)?, cx.fact(codes + 1)?)?;
        Ok(Weights {
            k,
            codes: vec![codes],
            ends: vec![n],
            starts: vec![0],
            second: None,
        })
    }

    /// All weights, and the operand that holds all results; the reason if they cannot share one
    /// buffer. A result starts after the maximum size of the previous ones, at an offset where a
    /// view can start, so its offset is the same in all runs.
    fn side_by_side(&self, cx: &mut LowerCx<'_>) -> OpResult<Result<(Weights, Operand), String>> {
        let rows = rows(&cx.shape(0)?)?;
        let Some(most) = cx.upper_bound(&rows).and_then(|n| u64::try_from(n).ok()) else {
            return Ok(Err(format!("{rows} rows have no bound")));
        };
        let (mut k, mut end, mut ends, mut room) = (0, 0, Vec::new(), Vec::new());
        for codes in self.codes() {
            let (depth, n) = packed_size(self.format, cx.fact(codes)?, cx.fact(codes + 1)?)?;
            (k, end) = (depth, end + n);
            ends.push(end);
            room.push(most.max(1).saturating_mul(n as u64));
        }
        Ok(cx.block(&room)?.map(|block| {
            let weights = Weights {
                k,
                codes: self.codes().collect(),
                ends,
                starts: block.starts,
                second: None,
            };
            (weights, block.operand)
        }))
    }

    /// Lowers `function` of the products with two weights. For one row, and for more on some
    /// devices, a dispatch computes both products and stores only the function's result, so the
    /// gate of a feed-forward layer needs no launch of its own (paper, section 2.2, counts launches
    /// among the costs of a decode step). Otherwise there are two dispatches: a matmul into scratch
    /// memory, and one with the function as its epilogue.
    fn lower_gated(&self, cx: &mut LowerCx<'_>, function: &Pointwise) -> OpResult<()> {
        let (mut weights, y) = (self.one_weight(cx, 1)?, cx.output(0)?);
        let n = weights.columns();
        let place = if self.supports_two_weights(cx, weights.k, n)? {
            weights.second = Some(3);
            ExprSource::Other
        } else {
            let count = rows(&cx.shape(0)?)?.mul(&Dim::from_usize(n))?;
            let other = cx.temp(y.dtype, count);
            let second = self.one_weight(cx, 3)?;
            self.emit(cx, &second, other)?;
            ExprSource::Beside(other)
        };
        let epilogue = pointwise::epilogue(&function.expr, cx, &[ExprSource::Result, place])?;
        cx.storing(&epilogue, self.name(), |cx| self.emit(cx, &weights, y))
    }

    /// The left operand, and the scale of its normalization, if any.
    pub(super) fn operands(&self, cx: &mut LowerCx<'_>) -> OpResult<(Operand, Option<Operand>)> {
        let x = cx.input(0)?;
        let gain = self.norm.map(|_| cx.input(self.gain())).transpose()?;
        Ok((x, gain))
    }

    /// Normalizes rows of `k` elements into scratch memory of `dtype`, if there is a norm.
    pub(super) fn normed(
        &self,
        cx: &mut LowerCx<'_>,
        (x, gain): (Operand, Option<Operand>),
        (rows, k): (&Dim, usize),
        dtype: DType,
    ) -> OpResult<Operand> {
        let Some(epsilon) = self.norm else { return Ok(x) };
        let normed = cx.temp(dtype, rows.mul(&Dim::from_usize(k))?);
        let all = norm::RowNorm {
            rows: rows.clone(),
            cols: Dim::from_usize(k),
            place: norm::ScaleIndex::Column,
            center: false,
            given: false,
            epsilon,
        };
        norm::emit_to(cx, &all, x, [gain, None, None, None], normed)?;
        Ok(normed)
    }

    /// Emits the matmul of operand 0 with `weights` into `y`. With several matrices, the results
    /// are stored one after another, possibly with gaps.
    fn emit(&self, cx: &mut LowerCx<'_>, weights: &Weights, y: Operand) -> OpResult<()> {
        let (k, n) = (weights.k, weights.columns());
        let rows = rows(&cx.shape(0)?)?;
        for (what, columns) in [("first operand", k), ("result", n)] {
            cx.countable(what, &rows.mul(&Dim::from_usize(columns))?)?;
        }
        let (x, gain, form) = match self.activations {
            _ if cx.device().runs(&PRODUCT) => self.left_native(cx, &rows, k)?,
            ActivationType::Int8 => self.left_int8(cx, &rows, [k, n])?,
            _ => self.left_floats(cx, &rows, k, y.dtype)?,
        };
        let second = weights.second_part(cx, self.format)?;
        for range in packed_parts(cx, &weights.codes, self.format, k, n)? {
            let [end0, end1, start1, start2] = weights.column_fields()?;
            let part = Part {
                weights,
                size: [k, range.count],
                x,
                gain,
                codes: range.codes,
                scales: range.scales,
                codes2: second.as_ref().map(|s| s.codes),
                scales2: second.as_ref().map(|s| s.scales),
                y,
                m: rows.clone(),
                n: Dim::from_usize(range.count),
                k: Dim::from_usize(k),
                panel: Dim::from_usize(range.panel),
                y_stride: Dim::from_usize(n),
                column: Dim::from_usize(range.first),
                end0,
                end1,
                start1,
                start2,
                epsilon: self.norm.unwrap_or(0.0),
            };
            match form {
                LeftForm::Floats(several) => self.emit_floats(cx, part, several)?,
                LeftForm::Int8(factors) => self.emit_int8(cx, part, factors)?,
                LeftForm::Native(bytes) => self.emit_native(cx, part, bytes)?,
            }
        }
        Ok(())
    }

    /// True if one dispatch can multiply all rows by two `k x n` weights.
    fn supports_two_weights(&self, cx: &mut LowerCx<'_>, k: usize, n: usize) -> OpResult<bool> {
        let rows = rows(&cx.shape(0)?)?;
        let types = [cx.input(0)?.dtype, cx.output(0)?.dtype];
        let most = cx.upper_bound(&rows);
        let several = || self.several_rows(cx.device(), types, k, most);
        let fits = cx.device().runs(&PRODUCT) || rows.is(1) || several().is_some();
        Ok(fits && cx.split(n, (self.format.bits.rows(k), 4), 64)?.len() == 1)
    }
}
