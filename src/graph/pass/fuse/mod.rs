//! Passes that replace several operators by one that kernels compute at once.
#![expect(missing_docs, reason = "`Pass::does` documents each pass")]

mod attention;
mod elementwise;
mod epilogue;
mod gate_up;
mod joint_matmul_e0m;
mod norm;
mod norm_matmul;
mod rotary;
mod rotary_append;
mod rotary_interleaved;

pub use attention::ATTENTION;
pub use elementwise::FUSE;
pub use epilogue::EPILOGUE;
pub use gate_up::GATE_UP;
pub use joint_matmul_e0m::JOINT_MATMUL;
pub use norm::NORM;
pub use norm_matmul::NORM_MATMUL;
pub use rotary::ROTARY;
pub use rotary_append::ROTARY_APPEND;
pub use rotary_interleaved::ROTARY_INTERLEAVED;
