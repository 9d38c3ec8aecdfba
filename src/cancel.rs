//! Stops a generation, a run or a rendering from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that stops a call; clones share the flag across threads. A generation ends before its
/// next step (one token or one chunk of a prompt) with
/// [`Finish::Cancelled`](crate::llm::Finish::Cancelled). Other calls fail with an error of kind
/// [`ErrorKind::Interrupted`](crate::error::ErrorKind::Interrupted).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag. Returns true if it was not set before.
    pub fn cancel(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Clears the flag for the next generation.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// True if the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
