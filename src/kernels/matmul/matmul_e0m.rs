//! Matmul with quantized weights.

pub mod int8;
pub mod tensor_cores;

use crate::backend::kernel::{Feature, Features, Form, subgroup_size};

/// Bits per weight.
pub const BITS: &str = "BITS";
/// Weights of a group that kernels walk at once.
pub const GROUP: &str = "GROUP";
/// Weights of 8 bits: a word holds four.
pub const PER4: &str = "PER4";
/// Such groups that share a scale.
pub const SPAN: &str = "SPAN";
/// Scales are nested (`src/quant/nested.rs`), with this many groups per block.
pub const NESTED: &str = "NESTED";
/// Bits of the integers of a group of nested scales.
pub const ENTRY: &str = "ENTRY";
/// Their integers have 6 bits.
pub const SIX: &str = "SIX";
/// Their groups have minima.
pub const MINIMA: &str = "MINIMA";
/// Results are those of several weights.
pub const PARTS: &str = "PARTS";

crate::kernel! {
    /// Kernel for one row. Reads the fields `end0` to `start2` only with PARTS. Only variants for
    /// several rows read `m` and `y_stride`.
    pub static VECTOR: TypedKernel<VectorArgs> = "matmul/matvec_e0m" {
        n, steps, panel, column, end0, end1, start1, start2, m, y_stride: U32; epsilon: F32
    } [
        x: In, gain: OptionalIn, codes: Weight Uint4, scales: Weight Uint4,
        codes2: OptionalWeight Uint4, scales2: OptionalWeight Uint4, y: PartialOut
    ]
    .with_forms(&[
        Form {
            // Loads a k-block in one run, which needs registers that compilers may not have.
            define: "WHOLE",
            needs: |_| true,
            features: Features::NONE,
        },
        Form {
            // Weights as pairs of halves.
            define: "PAIRS",
            needs: |device| device.fast_f16,
            features: Features::all(&[Feature::F16]),
        },
        subgroup_size::FORM,
    ])
    .finite_halves()
}

crate::kernel! {
    /// Kernel for many rows.
    pub static MATRIX: TypedKernel<MatrixArgs> = "matmul/matmul_e0m" {
        m, n, k, panel, y_stride, column, end0, end1, start1, start2: U32
    } [x: In, codes: Weight Uint4, scales: Weight Uint4, y: PartialOut]
    .with_forms(&[subgroup_size::FORM])
    .finite_halves()
}

crate::kernel! {
    /// Kernel for many rows in halves, 2 columns per work-item.
    pub static PAIRS: TypedKernel<MatrixArgs> = "matmul/matmul_e0m_pairs"
    .with_features(Features::all(&[Feature::F16]))
    .variant_of(&MATRIX.kernel, |device| device.fast_f16 && device.few_registers)
}
