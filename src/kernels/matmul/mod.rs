pub mod matmul;
pub mod matmul_e0m;
pub mod product_e0m;
