//! Kernels that measure a device, and random weights.

#[cfg(feature = "cpu")]
pub mod cpu;

use crate::backend::kernel::{Feature, Features};

crate::kernel! {
    pub static COPY: TypedKernel<WalkArgs> = "probe/probe_copy" {
        count, each, next: U32
    } [x: In Uint4, y: Out Uint4]
    .linear()
}

crate::kernel! {
    pub static READ: TypedKernel<WalkArgs> = "probe/probe_read" with [y: Out Uint]
    .linear()
}

crate::kernel! {
    pub static SINGLE: TypedKernel<FloatArgs> = "probe/probe_f32" {
        rounds: U32; factor, addend: F32
    } [y: Out Single]
    .linear()
}

crate::kernel! {
    pub static HALF: TypedKernel<FloatArgs> = "probe/probe_f16"
    .linear()
    .with_features(Features::all(&[Feature::F16]))
}

crate::kernel! {
    pub static DOT: TypedKernel<DotArgs> = "probe/probe_dot" { rounds, factor: U32 } [y: Out Single]
    .linear()
}

crate::kernel! {
    pub static MATRIX: TypedKernel<FloatArgs> = "probe/probe_matrix"
    .with_features(Features {
        opencl_c: &[Feature::TensorCores],
        wgsl: &[Feature::TensorCores, Feature::F16],
    })
}

/// The numbers are integers with random bits.
pub const BITS: &str = "BITS";

crate::kernel! {
    /// Pseudorandom weights.
    pub static RANDOM: TypedKernel<RandomArgs> = "probe/random" {
        pairs, next, seed: U32; center, spread, center_odd, spread_odd: F32
    } [y: Out]
    .linear()
}
