//! What a text must keep to while it is generated.

use crate::error::Result;

/// Knows which tokens a text may go on with.
pub trait Constraint: Send {
    /// Begins a new text.
    fn start(&mut self) -> Result<()>;

    /// Sets the logits of all tokens that may not come next to minus infinity; at least one is left.
    fn mask(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Goes on with `token`. An error where it may not come next.
    fn accept(&mut self, token: u32) -> Result<()>;

    /// True when the text is whole and nothing may follow but its end.
    fn is_complete(&self) -> bool;
}
