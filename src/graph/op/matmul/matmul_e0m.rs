//! Matmuls with quantized weights of any format of [`crate::quant`] (own domain, `MatMulE0M` in
//! files). Operands: `x [.., K]`, then quantized weights and scales of each weight in the layout of
//! that module. Attributes in files, where there is one weight: `bits`, `group_size`, and, if
//! scales are nested, `scale_block`, which is 256.
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

/// The arguments of a kernel: those of a part that all kernels take, the named ones, and others.
macro_rules! args {
    ($part:ident => $Args:ident { $($own:ident),* $(; $other:ident)? }) => {
        $Args {
            x: $part.x,
            codes: $part.codes,
            scales: $part.scales,
            y: $part.y,
            n: $part.n,
            column: $part.column,
            end0: $part.end0,
            end1: $part.end1,
            start1: $part.start1,
            start2: $part.start2,
            $($own: $part.$own,)*
            $($other,)?
        }
    };
}

mod cases;
mod generic;
mod int8;
mod lower;
mod native;
mod tensor_cores;
mod tune;

use self::cases::cases;
pub(crate) use self::cases::packed_case;
pub use self::tensor_cores::{NORM_ROWS, ROW_LIMITS};
use crate::graph::op::pointwise::{Expr, Pointwise};
use crate::graph::op::rms_norm::RmsNorm;
use crate::graph::op::sizes::Sizes;
use crate::graph::op::{Attributes, InferCx, Inputs, Op, OpDef, OpError, OpResult, operand, own};
use crate::kernels::matmul_e0m::{
    BITS, ENTRY, GROUP, MATRIX, MINIMA, MatrixArgs, NESTED, PAIRS, PER4, SIX, SPAN, VECTOR, VectorArgs,
};
use crate::lower::{Call, DeviceProfile, LowerCx, Operand, Pack};
use crate::num;
use crate::quant::{Bits, Format, GROUP_STEP, PackedView, Scales, nested, scale_words};
use crate::shape::{Dim, Fact, Shape};
use crate::tensor::product::gemm;
use crate::tensor::{DType, HostTensor, PANEL};
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
    let Some(block) = a.int("scale_block")? else {
        return Ok(Format::new(bits, group));
    };
    let whole = block == num::signed(nested::BLOCK);
    let format = Format::nested(bits).filter(|f| whole && f.group == group);
    format.ok_or_else(|| {
        OpError::expected(
            "attribute `scale_block`",
            format!(
                "{}, and the group size of a K-quant of as many bits",
                nested::BLOCK
            ),
            format!("{block}, with {bits} in groups of {group}"),
        )
    })
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
        let what = match format.scales {
            Scales::Pairs => "quantized weights (u32[K * bits / 32, N]) and scales (f16[groups, N, 2])",
            Scales::Nested(_) => "quantized weights (u32[K * bits / 32, N]) and nested scales (u32[rows, N])",
        };
        OpError::mismatch(what, codes, scales)
    };
    let &[rows, n] = c.as_slice() else {
        return Err(mismatch());
    };
    let k = format
        .bits
        .weights(rows)
        .filter(|k| *k > 0)
        .ok_or_else(mismatch)?;
    let fits = k.is_multiple_of(format.k_step()) && n.is_multiple_of(2) && n > 0;
    if fits && codes.dtype == DType::U32 && (scales.dtype, s) == format.scale_tensor(k, n) {
        Ok((k, n))
    } else {
        Err(mismatch())
    }
}

/// Default k-block, in weights; a kernel may ask for less.
pub(crate) const K_BLOCK: usize = 256;

/// Maximum number of activations per quantization block.
pub const ACTIVATIONS: usize = 128;

/// Sets the defines of `common/e0m`: width, bit planes, groups. Kernels walk k-blocks of at most
/// `most` weights, so a larger group consists of several.
pub(crate) fn format_defines<A>(call: Call<A>, format: Format, most: usize) -> Call<A> {
    let Format { bits, group, scales } = format;
    let k_block = k_block(group, most);
    let mut call = call
        .define(BITS, i64::from(bits.count()))
        .define(GROUP, num::signed(k_block));
    call = call.define_if(PER4, bits == Bits::Eight);
    if let ([high, ..], true) = (bits.planes(), !matches!(bits, Bits::Four | Bits::Eight)) {
        call = call.define("HIGH", i64::from(high.width));
    }
    if let [_, low] = bits.planes() {
        call = call.define("LOW", i64::from(low.width));
    }
    if k_block < group {
        call = call.define(SPAN, num::signed(group / k_block));
    }
    match scales {
        Scales::Pairs => call,
        Scales::Nested(nested) => call
            .define(NESTED, num::signed(nested.groups()))
            .define(ENTRY, i64::from(nested.entry))
            .define_if(SIX, nested.is_six())
            .define_if(MINIMA, nested.minima),
    }
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
    /// Words: pairs of scale and bias, or nested scales.
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
    format: Format,
    k: usize,
    n: usize,
) -> OpResult<Vec<ColumnRange>> {
    let mut parts = Vec::new();
    let scales: Vec<usize> = codes.iter().map(|i| i + 1).collect();
    for (first, count) in cx.split(n, (format.bits.rows(k), 4), 64)? {
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
        self.lower_all(cx)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let products = sizes.row_products();
        match &self.gate {
            Some(function) => products.saturating_mul(2).saturating_add(function.flops(sizes)),
            None => products,
        }
    }
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
        let (codes, scales) = (codes.u32s()?, scale_words(scales)?);
        let matrix = PackedView {
            format: self.format,
            k,
            n,
            codes: &codes,
            scales: &scales,
        };
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
            matrix.decode_rows(first, &mut unpacked[..count * n]);
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

    /// True if half arithmetic is precise enough: its error is below that of the quantized weights
    /// and of `f16` results.
    fn in_pairs(&self, types: [DType; 2]) -> bool {
        types == [DType::F16; 2] && self.format.bits.count() <= 4
    }

    /// True if the half-precision kernel for many rows is used. With more registers, the
    /// single-precision kernel needs fewer instructions. The kernel makes the weights of a group at
    /// most 1 / 8 by their bias, which nested scales do not have.
    fn matrix_pairs(&self, device: &DeviceProfile, types: [DType; 2]) -> bool {
        device.supports(&PAIRS) && self.in_pairs(types) && self.format.scales == Scales::Pairs
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
