//! Passes that simplify a graph: they remove, merge and rewrite operators.
#![expect(missing_docs, reason = "`Pass::does` documents each pass")]

mod conv_norm;
mod decompose;
mod decompose_gemm;
mod duplicates;
mod fold;
mod gather_to_slice;
mod inline_if;
mod outer_product;
mod remove_noops;
mod sink_transposes;
mod split;
mod trans_b;

pub use conv_norm::CONV_NORM;
pub(crate) use decompose::keeps_cache;
pub use decompose::{CACHES, DECOMPOSE};
pub use decompose_gemm::DECOMPOSE_GEMM;
pub use duplicates::DUPLICATES;
pub use fold::FOLD;
pub use gather_to_slice::GATHER_TO_SLICE;
pub use inline_if::INLINE_IF;
pub use outer_product::OUTER_PRODUCT;
pub use remove_noops::REMOVE_NOOPS;
pub use sink_transposes::SINK_TRANSPOSES;
pub use split::SPLIT;
pub use trans_b::TRANS_B;
