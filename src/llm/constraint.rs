//! Constraints on generated text.

use super::schema::DefaultBound;
use crate::error::Result;

/// Decides which tokens may come next.
pub trait Constraint: Send {
    /// Begins a new text.
    fn start(&mut self) -> Result<()>;

    /// Sets the logits of all tokens that may not come next to minus infinity; at least one
    /// remains.
    fn mask(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Advances by `token`. An error if it may not come next.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// True if the text is complete and only its end may follow.
    fn is_complete(&self) -> bool;

    /// The default bounds at which values of the text ended.
    fn reached(&self) -> Vec<DefaultBound> {
        Vec::new()
    }
}
