//! Many sequences on one model: their rows share steps, and their common prefixes share pages of
//! the cache (docs/design/batching.md).

mod batcher;
mod pages;
mod scheduler;
mod sequence;
mod steps;
#[cfg(test)]
mod tests;

pub use batcher::{Batcher, Request, Ticket};
pub use steps::{BatchSequence, Steps};
