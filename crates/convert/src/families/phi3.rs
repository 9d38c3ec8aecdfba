//! Phi-3, Phi-3.5 and Phi-4-mini: fused projections, length-dependent frequencies.

use super::Family;

pub const FAMILY: Family = Family {
    name: "phi3",
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    joins_projections: true,
    rotates_part: true,
    ..Family::DENSE
};
