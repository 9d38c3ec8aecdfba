//! Progress of reading a long prompt.

use std::fmt;
use std::sync::Arc;

/// A callback for prompts that take several runs. It receives the tokens read and the total, before
/// each run and at the end. The default does nothing.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(usize, usize) + Send + Sync>>);

impl Progress {
    /// Reports progress to `on_progress`.
    pub fn of(on_progress: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(on_progress)))
    }

    pub(super) fn report(&self, done: usize, all: usize) {
        if let Some(on_progress) = &self.0 {
            on_progress(done, all);
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
