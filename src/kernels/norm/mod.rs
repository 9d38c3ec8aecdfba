pub mod lrn;
pub mod norm;
