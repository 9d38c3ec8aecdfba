//! Matmul with quantized weights on tensor cores.

use crate::backend::kernel::{Feature, Features, Form};

use super::{MatrixArgs, VectorArgs};
use crate::backend::{DeviceProfile, TensorCores};

/// Local memory of the largest tile.
pub const LOCAL: u32 = 46 << 10;
/// Maximum warps per work-group: with more, each has too few registers.
pub const MAX_WARPS: u32 = 16;
pub const WARP: u32 = 32;

/// Device features that all these kernels require.
pub fn able(device: &DeviceProfile) -> bool {
    device.tensor_cores.is_some() && device.local_bytes >= LOCAL && device.max_workgroup >= MAX_WARPS * WARP
}

/// True if kernels use tensor cores as cooperative matrices.
pub fn by_matrices(device: &DeviceProfile) -> bool {
    device.tensor_cores == Some(TensorCores::CooperativeMatrix)
}

crate::kernel! {
    /// Kernel for one row. A work-group computes 32 columns.
    pub static VECTOR: TypedKernel<VectorArgs> = "matmul/matvec_e0m_mma" with [x: In Uint4]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::Subgroups],
    })
    .variant_of(&super::VECTOR.kernel, able)
    .with_forms(&[Form {
        // With weights as pairs of halves.
        define: "PAIRS",
        needs: |device| by_matrices(device) && device.f16_math,
        features: Features {
            wgsl: &[Feature::F16],
            ..Features::NONE
        },
    }])
}

crate::kernel! {
    /// Kernel for more rows in PTX. A work-group computes 32 rows.
    pub static MMA: TypedKernel<VectorArgs> = opencl_c "matmul/matmul_e0m_mma" with [x: In Uint4]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        ..Features::NONE
    })
    .variant_of(&super::MATRIX.kernel, able)
}

crate::kernel! {
    /// Kernel for a few rows. A work-group computes 16 rows, or in PTX 8 or 16, and 32 columns.
    pub static FEW: TypedKernel<VectorArgs> = "matmul/matmul_e0m_few" with [x: In Uint4]
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::TensorCores, Feature::F16, Feature::Subgroups],
    })
    .variant_of(&super::MATRIX.kernel, able)
}

crate::kernel! {
    /// Kernel for many rows with cooperative matrices.
    pub static MATRIX: TypedKernel<MatrixArgs> = wgsl "matmul/matmul_e0m_coop" with [x: In Half4]
    .with_features(Features {
        wgsl: &[Feature::TensorCores, Feature::F16],
        ..Features::NONE
    })
    .variant_of(&super::MATRIX.kernel, able)
}
