//! Matmul with quantized weights and 8-bit activations.

use crate::backend::kernel::{Feature, Features};
use crate::kernels::dots;

crate::kernel! {
    /// Quantizes activations to 8 bits.
    pub static QUANTIZE: TypedKernel<QuantizeArgs> = "matmul/quantize_rows" {
        rows, k: U32
    } [x: In, y: Out Uint, factors: Out Uint]
    .linear()
    .finite_halves()
}

crate::kernel! {
    /// Kernel for one row, which it quantizes itself. Reads `end0` to `start2` only with PARTS.
    pub static VECTOR: TypedKernel<VectorArgs> = "matmul/matvec_e0m_int8" {
        n, panel, column, end0, end1, start1, start2: U32; epsilon: F32
    } [
        x: In, gain: OptionalIn, codes: Weight Uint4, scales: Weight Uint4,
        codes2: OptionalWeight Uint4, scales2: OptionalWeight Uint4, y: PartialOut
    ]
    .with_features(Features::all(&[Feature::PackedDot]))
    .with_forms(dots::FORMS)
    .finite_halves()
}

crate::kernel! {
    /// Kernel for any number of rows.
    pub static PRODUCT: TypedKernel<MatrixArgs> = "matmul/matmul_e0m_int8" {
        m, n, k, panel, y_stride, column, end0, end1, start1, start2: U32
    } [x: In Uint, factors: In Uint, codes: Weight Uint4, scales: Weight Uint4, y: PartialOut]
    .with_features(Features::all(&[Feature::PackedDot]))
    .with_forms(dots::FORMS)
    .finite_halves()
}
