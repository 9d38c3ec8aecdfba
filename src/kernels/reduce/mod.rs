pub mod arg_max;
pub mod cumulative;
pub mod reduce;
pub mod softmax;
pub mod top_k;
