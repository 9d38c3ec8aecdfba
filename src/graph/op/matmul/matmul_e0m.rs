//! Matmuls with quantized weights of any format of [`crate::quant`] (own domain, `MatMulE0M` in
//! files). Operands: `x [.., K]`, then quantized weights and scales of each weight in the layout of
//! that module. Attributes in files, where there is one weight: `bits`, `group_size`.
//!
//! Passes give a node up to three weights, such as those of query, key and value, with a result for
//! each, or two weights and an elementwise function of both products, such as SwiGLU. If a kernel
//! can bind all results as one buffer, one dispatch computes all of them, over the columns of all
//! weights side by side. Otherwise, for example if the number of rows is unbounded, each weight has
//! its own dispatch.
//!
//! There are two kernel families (paper, section 2.2): `matvec_e0m` for one row (decode) and
//! `matmul_e0m` for many rows (prefill), with variants for tensor cores (module `tensor_cores`),
//! which also distinguish numbers of rows in between. On phones with fast half arithmetic, low-bit
//! weights are decoded to pairs of halves: the define `PAIRS`, and `matmul_e0m_pairs`. A weight
//! above a kernel's binding limit is split by columns. Activations may be quantized to 8 bits
//! (module `int8`).

mod cases;
mod generic;
mod int8;
mod native;
mod tensor_cores;
mod tune;

use self::cases::cases;
pub(crate) use self::cases::packed_case;
use self::tensor_cores::Several;
pub use self::tensor_cores::{NORM_ROWS, ROW_LIMITS};
use crate::kernels::matmul_e0m::{MATRIX, MatrixArgs, PAIRS, VECTOR, VectorArgs};

use crate::graph::op::norm;
use crate::graph::op::pointwise::{self, Expr, ExprSource, Pointwise};
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::lower::{Call, DeviceProfile, LowerCx, Operand, Pack};
use crate::num;
use crate::quant::{Bits, Format, GROUP_STEP, decode_rows};
use crate::shape::{Dim, Fact, Shape, product};
use crate::tensor::product::gemm;
use crate::tensor::{DType, HostTensor, PANEL};
use half::f16;
use std::fmt;

/// What rows of `x` are quantized to before they are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationType {
    /// They stay floats.
    #[default]
    Float,
    /// 16 bits, with an error below that of storing halves. Devices without native kernels keep
    /// floats.
    Int16,
    /// 8 bits, with one scale per block of at most [`ACTIVATIONS`] elements.
    Int8,
}

impl fmt::Display for ActivationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float => "float",
            Self::Int16 => "int16",
            Self::Int8 => "int8",
        })
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedMatMul {
    /// Number of weights, at most [`QuantizedMatMul::MAX_WEIGHTS`]. Each has a result.
    pub weights: usize,
    /// Set by the passes `int8_activations`, for 4-bit and 8-bit weights, and `int16_activations`.
    pub activations: ActivationType,
    /// Format of all weights.
    pub format: Format,
    /// Normalizes rows of `x` first ([`RmsNorm`]), with this epsilon and the last operand as scale.
    /// Set by the pass `norm_matmul`.
    pub norm: Option<f32>,
    /// An elementwise function of the products with two weights, which is then the only result. Set
    /// by the pass `gate_up`.
    pub gate: Option<Pointwise>,
}

/// Reads the format of a node of the own domain.
pub(crate) fn import_format(a: &dyn Attributes) -> OpResult<Format> {
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
    Ok(Format { bits, group })
}

/// K and N of packed operands; an error if these do not match.
pub(crate) fn packed_size(format: Format, codes: &Fact, scales: &Fact) -> OpResult<(usize, usize)> {
    let shapes = (codes.shape.as_fixed(), scales.shape.as_fixed());
    let (Some(c), Some(s)) = shapes else {
        return Err(OpError::expected(
            "quantized weights and scales",
            "constant shapes",
            format!("{codes} and {scales}"),
        ));
    };
    let mismatch = || {
        let what = "quantized weights (u32[K * bits / 32, N]) and scales (f16[groups, N, 2])";
        OpError::mismatch(what, codes, scales)
    };
    let (&[rows, n], &[groups, n2, 2]) = (c.as_slice(), s.as_slice()) else {
        return Err(mismatch());
    };
    let k = format
        .bits
        .weights(rows)
        .filter(|k| *k > 0)
        .ok_or_else(mismatch)?;
    let fits = n == n2 && groups == k.div_ceil(format.group) && n.is_multiple_of(2) && n > 0;
    if fits && codes.dtype == DType::U32 && scales.dtype == DType::F16 {
        Ok((k, n))
    } else {
        Err(mismatch())
    }
}

/// The scales as pairs of scale and bias.
pub(crate) fn scale_pairs(scales: &HostTensor) -> OpResult<Vec<[f16; 2]>> {
    Ok(scales.f16s()?.chunks_exact(2).map(|p| [p[0], p[1]]).collect())
}

/// Default k-block, in weights; a kernel may ask for less.
pub(crate) const K_BLOCK: usize = 256;

/// Maximum number of activations per quantization block.
pub const ACTIVATIONS: usize = 128;

/// Sets the defines of `common/e0m`: width, bit planes, groups. Kernels walk k-blocks of at most
/// `most` weights, so a larger group consists of several.
pub(crate) fn format_defines<A>(call: Call<A>, format: Format, most: usize) -> Call<A> {
    let Format { bits, group } = format;
    let k_block = k_block(group, most);
    let mut call = call
        .define("BITS", i64::from(bits.count()))
        .define("GROUP", num::signed(k_block));
    if bits == Bits::Eight {
        call = call.define("PER4", 1);
    }
    if let ([high, ..], true) = (bits.planes(), !matches!(bits, Bits::Four | Bits::Eight)) {
        call = call.define("HIGH", i64::from(high.width));
    }
    if let [_, low] = bits.planes() {
        call = call.define("LOW", i64::from(low.width));
    }
    if k_block < group {
        call = call.define("SPAN", num::signed(group / k_block));
    }
    call
}

/// The largest k-block that divides a group, is a multiple of the kernels' step, and has at most
/// `most` weights.
fn k_block(group: usize, most: usize) -> usize {
    if group <= most {
        return group;
    }
    let mut parts = (1..=most / GROUP_STEP).rev().map(|steps| steps * GROUP_STEP);
    parts
        .find(|part| group.is_multiple_of(*part))
        .unwrap_or(GROUP_STEP)
}

/// Columns of stored rows are padded to a multiple of this, so that work-items read whole vectors.
const PAD: usize = 16;

/// A range of columns of a packed matrix on the device.
pub(crate) struct ColumnRange {
    pub codes: Operand,
    /// Pairs of scale and bias, one word each.
    pub scales: Operand,
    pub first: usize,
    pub count: usize,
    /// Columns per panel (see [`Pack::Columns`]).
    pub panel: usize,
}

/// Uploads the packed matrices in the operands `codes` and the operands after them, side by side if
/// there are several, and split if they exceed a kernel's binding limit.
pub(crate) fn packed_parts(
    cx: &mut LowerCx<'_>,
    codes: &[usize],
    bits: Bits,
    k: usize,
    n: usize,
) -> OpResult<Vec<ColumnRange>> {
    let mut parts = Vec::new();
    let scales: Vec<usize> = codes.iter().map(|i| i + 1).collect();
    for (first, count) in cx.split(n, (bits.rows(k), 4), 64)? {
        let stride = count.next_multiple_of(PAD);
        // Neighbouring lanes of a GPU read neighbouring columns of whole rows.
        let panel = if cx.device().reads_panels() { PANEL } else { stride };
        let pack = Pack::Columns {
            dtype: DType::U32,
            transpose: false,
            first,
            count,
            stride,
            panel,
        };
        parts.push(ColumnRange {
            codes: cx.weights(codes, pack.clone())?,
            scales: cx.weights(&scales, pack)?,
            first,
            count,
            panel,
        });
    }
    Ok(parts)
}

impl Op for QuantizedMatMul {
    fn name(&self) -> &str {
        "QuantizedMatMul"
    }

    fn infer(&self, cx: &InferCx<'_>) -> OpResult<Vec<Fact>> {
        let products = self.codes().map(|codes| self.infer_one(cx, codes));
        let products = products.collect::<OpResult<Vec<_>>>()?;
        let Some(function) = &self.gate else {
            return Ok(products);
        };
        let [a, b] = products.as_slice() else {
            return Err(OpError::expected("weights with a gate", 2, self.weights));
        };
        if a != b {
            return Err(OpError::mismatch("results of both matmuls", a, b));
        }
        let facts = cx.of(function, &[Some(a), Some(b)])?;
        match facts.as_slice() {
            [y] if y.shape == a.shape && y.dtype == a.dtype => Ok(facts),
            _ => Err(OpError::expected(
                "a function of two floats",
                a,
                format!("{facts:?}"),
            )),
        }
    }

    fn eval(&self, inputs: &Inputs<'_>) -> OpResult<Vec<HostTensor>> {
        let mut x = operand(inputs, 0)?;
        let normed;
        if let Some(epsilon) = self.norm {
            let gain = operand(inputs, self.gain())?;
            normed = RmsNorm { epsilon }.eval(&[Some(x), Some(gain)])?;
            x = operand(&[normed.first()], 0)?;
        }
        let product = |codes| self.eval_one(x, operand(inputs, codes)?, operand(inputs, codes + 1)?);
        let products = self.codes().map(product).collect::<OpResult<Vec<_>>>()?;
        match &self.gate {
            Some(function) => function.eval(&products.iter().map(Some).collect::<Vec<_>>()),
            None => Ok(products),
        }
    }

    fn supports_epilogue(&self) -> bool {
        self.is_single()
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> OpResult<()> {
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

    fn flops(&self, sizes: &Sizes) -> u64 {
        let products = sizes.row_products();
        match &self.gate {
            Some(function) => products.saturating_mul(2).saturating_add(function.flops(sizes)),
            None => products,
        }
    }
}

/// The weights of one dispatch: one matrix, or several side by side.
struct Weights {
    /// Rows of each matrix.
    k: usize,
    /// Operands of quantized weights; each is followed by its scales.
    codes: Vec<usize>,
    /// End column of each matrix, counted over all of them.
    ends: Vec<usize>,
    /// First element of the result of each matrix.
    starts: Vec<u64>,
    /// Operand of the quantized weights of a second matrix with the size of the first. Its results
    /// are passed to the epilogue as [second
    /// results](crate::backend::kernel::epilogue::Argument::Other).
    second: Option<usize>,
}

impl Weights {
    /// Total columns of all matrices.
    fn columns(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether the results of one row have gaps between them.
    fn has_gaps(&self) -> bool {
        let mut behind = self.starts.iter().skip(1).zip(&self.ends);
        behind.any(|(start, end)| *start != *end as u64)
    }

    /// The second matrix, if any.
    fn second_part(&self, cx: &mut LowerCx<'_>, bits: Bits) -> OpResult<Option<ColumnRange>> {
        let Some(codes) = self.second else { return Ok(None) };
        let parts = packed_parts(cx, &[codes], bits, self.k, self.columns())?;
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
fn rows(x: &Shape) -> OpResult<Dim> {
    Ok(product(x.0.split_last().map_or(&[][..], |(_, before)| before))?)
}

/// Normalizes `x`, rows of `k` elements, with scale `gain` into scratch memory of `dtype`.
fn normed(
    cx: &mut LowerCx<'_>,
    x: Operand,
    gain: Option<Operand>,
    epsilon: f32,
    (rows, k): (&Dim, usize),
    dtype: DType,
) -> OpResult<Operand> {
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

impl QuantizedMatMul {
    /// Maximum number of weights.
    pub const MAX_WEIGHTS: usize = 3;

    /// A matmul with one weight, float activations and without norm.
    pub const fn new(format: Format) -> Self {
        Self {
            weights: 1,
            activations: ActivationType::Float,
            format,
            norm: None,
            gate: None,
        }
    }

    /// The function `expr` of two such matmuls, its operands 0 and 1.
    #[must_use]
    pub fn gated(self, expr: Expr) -> Self {
        let function = Pointwise {
            name: "Gate".to_owned(),
            expr,
        };
        Self {
            weights: 2,
            gate: Some(function),
            ..self
        }
    }

    /// True for a matmul with one weight.
    pub fn is_single(&self) -> bool {
        self.weights == 1 && self.gate.is_none()
    }

    /// Operands of the quantized weights; each is followed by its scales.
    fn codes(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.weights).map(|i| 2 * i + 1)
    }

    /// Operand of the scale of [`QuantizedMatMul::norm`], if set.
    fn gain(&self) -> usize {
        2 * self.weights + 1
    }

    /// The fact of the product with one weight.
    fn infer_one(&self, cx: &InferCx<'_>, codes: usize) -> OpResult<Fact> {
        let x = cx.fact(0)?;
        let (k, n) = packed_size(self.format, cx.fact(codes)?, cx.fact(codes + 1)?)?;
        let Some((last, before)) = x.shape.0.split_last() else {
            return Err(OpError::expected("rank of x", "1 or more", 0));
        };
        if !x.dtype.is_float() || *last != Dim::from_usize(k) {
            return Err(OpError::mismatch("inner dimensions", x, k));
        }
        if self.norm.is_some() {
            let gain = cx.fact(self.gain())?;
            if gain.shape.0 != [Dim::from_usize(k)] {
                return Err(OpError::mismatch("sizes of the norm's scale", gain, k));
            }
        }
        let mut shape = before.to_vec();
        shape.push(Dim::from_usize(n));
        Ok(Fact::new(x.dtype, Shape(shape)))
    }

    /// Multiplies `x`, already normalized, with one weight.
    fn eval_one(&self, x: &HostTensor, codes: &HostTensor, scales: &HostTensor) -> OpResult<HostTensor> {
        let facts = [codes, scales].map(|t| Fact::new(t.dtype(), Shape::fixed(t.shape())));
        let (k, n) = packed_size(self.format, &facts[0], &facts[1])?;
        let mut data = match x.dtype() {
            // The weights are not more precise than single precision.
            #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
            DType::F64 => x.f64s()?.iter().map(|v| *v as f32).collect(),
            _ => x.to_f32()?,
        };
        if self.activations == ActivationType::Int8 {
            data = int8::rounded(&data, k, self.scaled_block()).into();
        }
        let (words, pairs) = (codes.u32s()?, scale_pairs(scales)?);
        let rows = data.len() / k;
        let mut y = vec![0f32; rows * n];
        // Unpacks a band of rows at a time instead of the whole weight.
        let band = (1usize << 22).div_ceil(n).min(k);
        let (mut unpacked, mut part, mut sum) = (
            vec![0f32; band * n],
            vec![0f32; rows * band],
            vec![0f32; rows * n],
        );
        for first in (0..k).step_by(band) {
            let count = band.min(k - first);
            decode_rows(
                self.format.bits,
                self.format.group,
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
            )?;
            for (y, s) in y.iter_mut().zip(&sum) {
                *y += s;
            }
        }
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        Ok(HostTensor::from_floats(x.dtype(), &shape, &y)?)
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

    /// The left operand, and the scale of its normalization if the kernel normalizes.
    /// `several` is that of [`QuantizedMatMul::several_rows`].
    fn activations_of(
        &self,
        cx: &mut LowerCx<'_>,
        (rows, several): (&Dim, Option<Several>),
        k: usize,
        y: DType,
    ) -> OpResult<(Operand, Option<Operand>)> {
        let x = cx.input(0)?;
        let Some(epsilon) = self.norm else {
            return Ok((x, None));
        };
        let gain = Some(cx.input(self.gain())?);
        let types = [x.dtype, y];
        let vector = rows.is(1);
        let on_tensor_cores = (vector || several.is_some())
            && self
                .vector_on_tensor_cores(cx.device(), types, [k, 1], (false, several), rows)
                .is_some();
        let itself = match on_tensor_cores {
            true => several.is_none_or(Several::can_normalize) && tensor_cores::holds_row(cx.device(), k),
            // Activations before normalization may be too large for halves.
            false => vector && !(cx.device().supports_form(&VECTOR, "PAIRS") && self.in_pairs(types)),
        };
        if itself {
            return Ok((x, gain));
        }
        let dtype = if on_tensor_cores { x.dtype } else { DType::F32 };
        Ok((normed(cx, x, gain, epsilon, (rows, k), dtype)?, None))
    }

    /// Emits the matmul of operand 0 with `weights` into `y`. With several matrices, the results are
    /// stored one after another, possibly with gaps.
    fn emit(&self, cx: &mut LowerCx<'_>, weights: &Weights, y: Operand) -> OpResult<()> {
        let (k, n) = (weights.k, weights.columns());
        let rows = rows(&cx.shape(0)?)?;
        let most = cx.upper_bound(&rows);
        for (what, columns) in [("first operand", k), ("result", n)] {
            cx.countable(what, &rows.mul(&Dim::from_usize(columns))?)?;
        }
        if cx.device().runs(&crate::kernels::product_e0m::PRODUCT) {
            return self.emit_native(cx, weights, y);
        }
        if self.activations == ActivationType::Int8 {
            return self.emit_int8(cx, weights, y);
        }
        // Weights that kernels decode at a time: one word of 4-bit or 8-bit weights.
        let step = if self.format.bits == Bits::Eight { 4 } else { 8 };
        let one = rows.is(1);
        let types = [cx.input(0)?.dtype, y.dtype];
        let several = match one {
            true => None,
            false => self.several_rows(cx.device(), types, k, most),
        };
        let (x, gain) = self.activations_of(cx, (&rows, several), k, y.dtype)?;
        let vector = one || several.is_some();
        let second = weights.second_part(cx, self.format.bits)?;
        // Several results of one row without gaps are like one row.
        let in_parts = weights.ends.len() > 1 && (!one || weights.has_gaps());
        // Rows of results start at multiples of four elements.
        let by_fours = weights.ends.iter().all(|end| end.is_multiple_of(4));
        for part in packed_parts(cx, &weights.codes, self.format.bits, k, n)? {
            let device = cx.device();
            let types = [x.dtype, y.dtype];
            let [end0, end1, start1, start2] = weights.column_fields()?;
            if vector {
                let (size, two) = ([k, part.count], second.is_some());
                let mut call = match self.vector_on_tensor_cores(device, types, size, (two, several), &rows) {
                    Some(call) => call,
                    None if one => self.generic_vector(device, types, size, two)?,
                    None => return Err(OpError::NoKernel(format!("{rows} rows, {several:?}"))),
                };
                if gain.is_some() {
                    call = call.define("DEPTH", num::signed(k));
                }
                if in_parts {
                    call = call.define("PARTS", 1);
                }
                let args = VectorArgs {
                    x,
                    gain,
                    codes: part.codes,
                    scales: part.scales,
                    codes2: second.as_ref().map(|s| s.codes),
                    scales2: second.as_ref().map(|s| s.scales),
                    y,
                    n: Dim::from_usize(part.count),
                    steps: Dim::from_usize(k / step),
                    panel: Dim::from_usize(part.panel),
                    column: Dim::from_usize(part.first),
                    end0,
                    end1,
                    start1,
                    start2,
                    m: rows.clone(),
                    y_stride: Dim::from_usize(n),
                    epsilon: self.norm.unwrap_or(0.0),
                };
                cx.emit(call, args)?;
                continue;
            }
            let on_tensor_cores =
                by_fours.then(|| self.matrix_on_tensor_cores(device, types, k, part.count, &rows, most));
            let mut call = match on_tensor_cores.flatten() {
                Some(call) => call,
                None if self.matrix_pairs(device, types) => self.matrix_in_pairs(part.count, &rows)?,
                None => self.generic_matrix(device, k, part.count, &rows, most)?,
            };
            if in_parts {
                call = call.define("PARTS", 1);
            }
            let args = MatrixArgs {
                x,
                codes: part.codes,
                scales: part.scales,
                y,
                m: rows.clone(),
                n: Dim::from_usize(part.count),
                k: Dim::from_usize(k),
                panel: Dim::from_usize(part.panel),
                y_stride: Dim::from_usize(n),
                column: Dim::from_usize(part.first),
                end0,
                end1,
                start1,
                start2,
            };
            cx.emit(call, args)?;
        }
        Ok(())
    }

    /// True if one dispatch can multiply all rows by two `k x n` weights.
    fn supports_two_weights(&self, cx: &mut LowerCx<'_>, k: usize, n: usize) -> OpResult<bool> {
        let rows = rows(&cx.shape(0)?)?;
        let types = [cx.input(0)?.dtype, cx.output(0)?.dtype];
        let most = cx.upper_bound(&rows);
        let several = || self.several_rows(cx.device(), types, k, most);
        let fits = cx.device().runs(&crate::kernels::product_e0m::PRODUCT) || rows.is(1) || several().is_some();
        Ok(fits && cx.split(n, (self.format.bits.rows(k), 4), 64)?.len() == 1)
    }

    /// True if half arithmetic is precise enough: its error is below that of the quantized weights
    /// and of `f16` results.
    fn in_pairs(&self, types: [DType; 2]) -> bool {
        types == [DType::F16; 2] && self.format.bits.count() <= 4
    }

    /// True if the half-precision kernel for many rows is used. With more registers, the
    /// single-precision kernel needs fewer instructions.
    fn matrix_pairs(&self, device: &DeviceProfile, types: [DType; 2]) -> bool {
        device.supports(&PAIRS) && self.in_pairs(types)
    }
}

fn import(a: &dyn Attributes) -> OpResult<Box<dyn Op>> {
    Ok(Box::new(QuantizedMatMul::new(import_format(a)?)))
}

pub static DEF: OpDef = OpDef {
    onnx: &[own("MatMulE0M", 4)],
    import,
    kernels: &[
        &VECTOR.kernel,
        &MATRIX.kernel,
        &PAIRS.kernel,
        &crate::kernels::matmul_e0m::tensor_cores::VECTOR.kernel,
        &crate::kernels::matmul_e0m::tensor_cores::MMA.kernel,
        &crate::kernels::matmul_e0m::tensor_cores::FEW.kernel,
        &crate::kernels::matmul_e0m::tensor_cores::MATRIX.kernel,
        &crate::kernels::matmul_e0m::int8::QUANTIZE.kernel,
        &crate::kernels::matmul_e0m::int8::VECTOR.kernel,
        &crate::kernels::matmul_e0m::int8::PRODUCT.kernel,
        &crate::kernels::product_e0m::QUANTIZE.kernel,
        &crate::kernels::product_e0m::PRODUCT.kernel,
        &crate::kernels::product_e0m::FLOAT_PRODUCT.kernel,
    ],
    cases,
};
