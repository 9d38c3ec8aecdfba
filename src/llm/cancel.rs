//! Stopping a generation from elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that stops generations; its clones are the same flag, in any thread. What runs ends before its next step, which is one token or one
/// part of a prompt, with [`Finish::Cancelled`](super::Finish::Cancelled).
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag. True when it was not set before.
    pub fn cancel(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Clears the flag, for the next generation.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    /// True when the flag is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
