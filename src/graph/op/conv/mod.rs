pub mod affine_grid;
pub mod causal_conv;
pub mod col2im;
pub mod conv;
pub mod conv_transpose;
pub mod deform_conv;
pub mod global_pool;
pub mod grid_sample;
pub mod max_unpool;
pub mod non_max_suppression;
pub mod pool;
pub mod resize;
pub mod roi_align;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &affine_grid::DEF,
    &causal_conv::DEF,
    &col2im::DEF,
    &conv::DEF,
    &conv_transpose::DEF,
    &deform_conv::DEF,
    &global_pool::DEF,
    &grid_sample::DEF,
    &max_unpool::DEF,
    &non_max_suppression::DEF,
    &pool::DEF,
    &resize::DEF,
    &roi_align::DEF,
];
