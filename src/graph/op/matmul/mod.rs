pub mod det;
pub mod einsum;
pub mod gemm;
pub mod matmul;
pub mod matmul_e0m;
pub mod matmul_nbits;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &det::DEF,
    &einsum::DEF,
    &gemm::DEF,
    &matmul::DEF,
    &matmul_e0m::DEF,
    &matmul_nbits::DEF,
];
