//! `ChatGLM`: sequence-first layout, fused projections, and rotated neighbours in the first half of
//! each head. Only graphs with random weights are written.

use super::Family;

pub const FAMILY: Family = Family {
    name: "chatglm",
    model_type: "chatglm",
    class: "ChatGLMModel",
    joins_projections: true,
    qkv_bias: true,
    sequence_first: true,
    ..Family::DENSE
};
