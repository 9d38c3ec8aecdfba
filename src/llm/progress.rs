//! Progress of reading a long prompt.

use std::fmt;
use std::sync::Arc;

/// A callback for prompts that take several runs. It receives the tokens read and the total, before
/// each run and at the end. The default does nothing.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(usize, usize) + Send + Sync>>);

impl Progress {
    /// Reports progress to `hear`.
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
            "Progress(Some)"
        } else {
            "Progress"
        })
    }
}
