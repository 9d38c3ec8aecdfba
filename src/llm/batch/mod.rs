//! Many sequences on one model: their rows share steps, and their common prefixes share pages of
//! the cache (docs/design/batching.md).

mod batcher;
mod beam;
mod pages;
mod scheduler;
mod sequence;
mod step;
mod steps;
#[cfg(test)]
mod tests;

pub use batcher::{BatchState, Batcher, Request, Ticket};
pub use beam::{Beam, BeamOptions, beam_search};
pub use steps::{BatchSequence, StepRunner};
