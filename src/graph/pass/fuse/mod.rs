//! Passes that replace several operators by one that kernels compute at once.
#![allow(missing_docs, reason = "`Pass::does` documents each pass")]

mod attention;
mod elementwise;
mod epilogue;
mod gated_product;
mod joint_matmul_e0m;
mod neighbours;
mod norm;
mod normed_product;
mod rotary;
mod rotary_append;

pub use attention::ATTENTION;
pub use elementwise::FUSE;
pub use epilogue::EPILOGUE;
pub use gated_product::GATED_PRODUCT;
pub use joint_matmul_e0m::JOINT_MATMUL_E0M;
pub use neighbours::NEIGHBOURS;
pub use norm::NORM;
pub use normed_product::NORMED_PRODUCT;
pub use rotary::ROTARY;
pub use rotary_append::ROTARY_APPEND;
