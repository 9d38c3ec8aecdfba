pub mod arg_max;
pub mod cumulative;
pub mod log_softmax;
pub mod reduce;
pub mod softmax;
pub mod top_k;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &arg_max::DEF,
    &cumulative::DEF,
    &log_softmax::DEF,
    &reduce::DEF,
    &softmax::DEF,
    &top_k::DEF,
];
