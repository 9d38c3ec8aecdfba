pub mod attention;
pub mod dequantize_kv;
pub mod group_query_attention;
pub mod kv_append;
pub mod kv_append_q8;
pub mod linear_attention;
pub mod paged_attention;
pub mod rotary;
pub mod rotary_append;
pub mod rotary_embedding;
pub mod sdpa;

use crate::graph::op::OpDef;

pub(crate) const OPS: &[&OpDef] = &[
    &attention::DEF,
    &dequantize_kv::DEF,
    &group_query_attention::DEF,
    &kv_append::DEF,
    &linear_attention::DEF,
    &paged_attention::DEF,
    &rotary::DEF,
    &rotary_append::DEF,
    &rotary_embedding::DEF,
    &sdpa::DEF,
];
