pub mod conv_integer;
pub mod int8_binary;
pub mod int8_conv;
pub mod int8_layout;
pub mod int8_matmul;
pub mod int8_pool;
pub mod int8_quantize;
pub mod int8_softmax;
pub mod int8_table;
pub mod matmul_integer;
pub mod qlinear;
pub mod quantize_linear;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &conv_integer::DEF,
    &int8_binary::DEF,
    &int8_conv::DEF,
    &int8_layout::DEF,
    &int8_matmul::DEF,
    &int8_pool::DEF,
    &int8_quantize::DEF,
    &int8_softmax::DEF,
    &int8_table::DEF,
    &matmul_integer::DEF,
    &qlinear::DEF,
    &quantize_linear::DEF,
];
