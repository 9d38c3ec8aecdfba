//! How far a long prompt has been read.

use std::fmt;
use std::sync::Arc;

/// Is told how many of how many tokens of a prompt have been read, by prompts that take several runs: before each run, and at the end. Without
/// one to tell, nothing.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(usize, usize) + Send + Sync>>);

impl Progress {
    /// Tells `hear`.
    pub fn of(hear: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hear)))
    }

    pub(super) fn tell(&self, done: usize, all: usize) {
        if let Some(hear) = &self.0 {
            hear(done, all);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Progress, heard"
        } else {
            "Progress"
        })
    }
}
