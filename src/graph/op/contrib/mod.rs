//! Operators of ONNX Runtime (domain `com.microsoft`) that other operators express.

pub mod dynamic_quantize;
pub mod embed_norm;
pub mod gather_block;
pub mod inverse;
pub mod multi_head;
pub mod products;
pub mod qlinear_where;
pub mod rotary_positions;
pub mod skip_norm;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &dynamic_quantize::DEF,
    &embed_norm::DEF,
    &gather_block::DEF,
    &inverse::DEF,
    &multi_head::DEF,
    &products::DEF,
    &qlinear_where::DEF,
    &rotary_positions::DEF,
    &skip_norm::DEF,
];
