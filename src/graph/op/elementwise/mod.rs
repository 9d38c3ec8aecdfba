pub mod bit_cast;
pub mod cast_like;
pub mod dropout;
pub mod fused;
pub mod pointwise;
pub mod random;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &bit_cast::DEF,
    &cast_like::DEF,
    &dropout::DEF,
    &fused::DEF,
    &pointwise::DEF,
    &random::DEF,
];
