//! Distills a language model with fake 4-bit weights (*BitDistiller*, Du et al., 2024, as in *LLM
//! Inference on Arm*): a student whose weights are rounded learns the next-token distributions of
//! the float model, on text that the float model wrote. `docs/qat-llm.md` is the user's guide.
//!
//! * [`decoder`]: a decoder in `burn` tensors;
//! * [`grid`]: fake quantization in groups, with the engine's numbers;
//! * [`text`]: sequences of tokens to train on;
//! * [`loss`]: confidence-aware divergence;
//! * [`student`]: training steps, and their state on disk;
//! * [`distill`]: runs on disk that can be resumed, and their results.

pub mod decoder;
pub mod distill;
pub mod grid;
pub mod loss;
pub mod student;
pub mod text;
