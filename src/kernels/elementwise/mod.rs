pub mod pointwise;
