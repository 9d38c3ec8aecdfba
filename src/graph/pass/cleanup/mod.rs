//! Passes that simplify a graph: they remove, merge and rewrite operators.

pub mod conv_norm;
pub mod decompose;
pub mod duplicates;
pub mod fold;
pub mod gemm;
pub mod identity;
pub mod inline_if;
pub mod moves;
pub mod outer;
pub mod pick;
pub mod split;
pub mod trans_b;
