//! Stops a generation, a run or a rendering from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that stops a call; clones share the flag across threads. A generation ends before its
/// next step (one token or one chunk of a prompt) with
/// [`Finish::Cancelled`](crate::llm::Finish::Cancelled). Other calls fail with an error of kind
/// [`ErrorKind::Interrupted`](crate::error::ErrorKind::Interrupted).
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    flag: Arc<AtomicBool>,
    parent: Option<Arc<Self>>,
}

impl Cancel {
    /// A new flag that is also set while this one is set.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Sets the flag. Returns true if it was not set before.
    pub fn cancel(&self) -> bool {
        !self.flag.swap(true, Ordering::SeqCst)
    }

    /// Clears this flag, but not its parent.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::SeqCst);
    }

    /// True if the flag or its parent is set.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::SeqCst) || self.parent.as_ref().is_some_and(|p| p.is_cancelled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ends_with_its_parent_but_not_the_reverse() {
        let parent = Cancel::default();
        let (one, other) = (parent.child(), parent.child());
        assert!(one.cancel() && !one.clone().cancel());
        assert_eq!(
            [&parent, &one, &other].map(Cancel::is_cancelled),
            [false, true, false]
        );
        parent.cancel();
        assert!(other.is_cancelled());
        parent.reset();
        assert_eq!([&one, &other].map(Cancel::is_cancelled), [true, false]);
    }
}
