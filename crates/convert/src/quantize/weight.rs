//! Weights to quantize, and their elements as stored.

use half::{bf16, f16};
use transformer_lite::unstable::quant::Bits;
use transformer_lite::unstable::tensor::DType;

/// A weight to quantize, as a `k` x `n` matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Index among the initializers.
    pub initializer: usize,
    /// The matrix is the transpose of the initializer.
    pub transposed: bool,
    pub bits: Bits,
    pub group: usize,
    pub k: usize,
    pub n: usize,
    /// Names of the new initializers.
    pub codes: String,
    pub scales: String,
    /// Nodes that read it.
    pub readers: Vec<usize>,
    /// It is the output head or an embedding table.
    pub head: bool,
}

/// Scaling of a weight before it is quantized. The model stays equivalent if the producers of its
/// inputs and the readers of its results are changed accordingly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling<'a> {
    /// Multipliers of the K rows.
    pub rows: Option<&'a [f32]>,
    /// Divisors of the N columns.
    pub columns: Option<&'a [f32]>,
}

/// Float types of stored weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Float {
    F32,
    F16,
    BF16,
    F64,
}

impl Float {
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::F64 => Some(Self::F64),
            _ => None,
        }
    }
}

/// The elements of a weight as stored.
#[derive(Clone, Copy)]
pub(super) struct Elements<'a> {
    float: Float,
    pub bytes: &'a [u8],
    /// Scaling applied to the columns before quantization.
    pub scaling: Scaling<'a>,
}

impl<'a> Elements<'a> {
    /// Elements without scaling; `None` for types that cannot be quantized.
    pub fn of(dtype: DType, bytes: &'a [u8]) -> Option<Self> {
        Float::of(dtype).map(|float| Self {
            float,
            bytes,
            scaling: Scaling::default(),
        })
    }

    /// The same elements with this scaling.
    pub fn scaled(self, scaling: Scaling<'a>) -> Self {
        Self { scaling, ..self }
    }

    /// Bytes of an element.
    pub fn element_size(&self) -> usize {
        match self.float {
            Float::F16 | Float::BF16 => 2,
            Float::F32 => 4,
            Float::F64 => 8,
        }
    }
}

/// At most `most` evenly spread columns as stored, one after the other.
pub(super) fn sample(tensor: Elements<'_>, w: &Weight, most: usize) -> Vec<f32> {
    let count = most.min(w.n);
    let (mut all, mut column) = (Vec::with_capacity(count * w.k), Vec::new());
    for i in 0..count {
        read_columns(tensor, w, i * w.n / count, 1, &mut column);
        all.extend_from_slice(&column);
    }
    all
}

/// Reads columns `first .. first + wide` of the matrix to pack, as stored, one after the other.
pub(super) fn read_columns(
    tensor: Elements<'_>,
    w: &Weight,
    first: usize,
    wide: usize,
    columns: &mut Vec<f32>,
) {
    columns.clear();
    columns.resize(wide * w.k, 0.0);
    let bytes = tensor.bytes;
    match tensor.float {
        Float::F32 => spread(bytes.as_chunks().0, w, first, columns, f32::from_le_bytes),
        Float::F16 => spread(bytes.as_chunks().0, w, first, columns, |b| {
            f16::from_le_bytes(b).to_f32()
        }),
        Float::BF16 => spread(bytes.as_chunks().0, w, first, columns, |b| {
            bf16::from_le_bytes(b).to_f32()
        }),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rounding is intended; values beyond single precision become infinite and are rejected"
        )]
        Float::F64 => spread(bytes.as_chunks().0, w, first, columns, |b| {
            f64::from_le_bytes(b) as f32
        }),
    }
}

fn spread<const SIZE: usize>(
    elements: &[[u8; SIZE]],
    w: &Weight,
    first: usize,
    columns: &mut [f32],
    value: impl Fn([u8; SIZE]) -> f32,
) {
    if w.transposed {
        for (to, from) in columns.iter_mut().zip(&elements[first * w.k..]) {
            *to = value(*from);
        }
    } else {
        for (i, row) in elements.chunks_exact(w.n).enumerate() {
            for (column, from) in columns.chunks_exact_mut(w.k).zip(&row[first..]) {
                column[i] = value(*from);
            }
        }
    }
}
