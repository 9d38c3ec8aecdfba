pub mod conv;
pub mod grid_sample;
pub mod pool;
pub mod resize;
