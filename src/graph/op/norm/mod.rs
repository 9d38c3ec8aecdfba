pub mod axes_norm;
pub mod batch_norm;
pub mod lrn;
pub mod norm;
pub mod rms_norm;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &axes_norm::DEF,
    &batch_norm::DEF,
    &lrn::DEF,
    &norm::DEF,
    &rms_norm::DEF,
];
