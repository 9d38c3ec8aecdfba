//! Small tokenizers and models without weights, which the engine's own tests use too.

pub use transformer_lite::unstable::llm::*;

#[path = "../../src/llm/testing.rs"]
pub mod testing;
