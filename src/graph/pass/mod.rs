//! Graph passes. Each one changes the graph through [`Edit`] and logs why it skips a candidate; the
//! graph is checked after each. [`pipeline`] orders them.

mod cleanup;
mod decoder;
mod fuse;
pub mod integer;
pub mod pattern;
pub mod pipeline;

pub use cleanup::*;
pub use decoder::*;
pub use fuse::*;
pub use pipeline::{Logits, Pipeline, Target};

use super::Edit;
use crate::error::Result;

/// A named transformation of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// Name in reports and options.
    pub name: &'static str,
    /// What it does, for the documentation.
    pub does: &'static str,
    /// What it leaves alone, besides values with other readers and graph outputs; may be empty.
    pub refuses: &'static str,
    /// Performs all its rewrites.
    pub run: fn(&mut Edit<'_>) -> Result<()>,
}

/// Result of one pass.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PassReport {
    /// Name of the pass.
    pub pass: &'static str,
    /// Number of rewrites made.
    pub edits: usize,
    /// Nodes before the pass.
    pub nodes_before: usize,
    /// Nodes after the pass and the removal of dead nodes.
    pub nodes_after: usize,
}
