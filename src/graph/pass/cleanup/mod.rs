//! Passes that simplify a graph: they remove, merge and rewrite operators.
#![allow(missing_docs, reason = "`Pass::does` documents each pass")]

mod conv_norm;
mod decompose;
mod duplicates;
mod fold;
mod gemm;
mod identity;
mod inline_if;
mod moves;
mod outer;
mod pick;
mod split;
mod trans_b;

pub use conv_norm::CONV_NORM;
pub(crate) use decompose::keeps_cache;
pub use decompose::{CACHES, DECOMPOSE};
pub use duplicates::DUPLICATES;
pub use fold::FOLD;
pub use gemm::GEMM;
pub use identity::IDENTITY;
pub use inline_if::INLINE_IF;
pub use moves::MOVES;
pub use outer::OUTER;
pub use pick::PICK;
pub use split::SPLIT;
pub use trans_b::TRANS_B;
