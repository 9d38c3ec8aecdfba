//! Passes that replace several operators by one that kernels compute at once.

pub mod attention;
pub mod elementwise;
pub mod epilogue;
pub mod gated_product;
pub mod joint_matmul_e0m;
pub mod neighbours;
pub mod norm;
pub mod normed_product;
pub mod rotary;
pub mod rotary_append;
