//! A device that fails at one call of its interface.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use transformer_lite::unstable::backend::kernel::KernelSpec;
use transformer_lite::unstable::backend::{
    Backend, BackendError, BufferId, Caps, Command, KernelId, Launch, RecordingId, ReplayMode, Stats, View,
};
use transformer_lite::unstable::tensor::Bytes;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    OutOfMemory,
    /// Every call after it fails too.
    Lost,
    /// The driver refuses a kernel: to build it, or to launch it.
    Kernel,
    Driver,
}

impl Failure {
    pub const ALL: [Self; 4] = [Self::OutOfMemory, Self::Lost, Self::Kernel, Self::Driver];
}

/// A backend whose calls are counted, and one of which fails.
pub struct Faulty {
    inner: Box<dyn Backend>,
    calls: Arc<AtomicU64>,
    fault: Option<(u64, Failure)>,
    lost: bool,
    kernels: HashMap<KernelId, String>,
    /// The first kernel of each recording.
    recordings: HashMap<RecordingId, String>,
}

impl Faulty {
    /// `fault` names the call, counted from 1, among those that can fail. `calls` counts them.
    pub fn new(inner: Box<dyn Backend>, fault: Option<(u64, Failure)>, calls: Arc<AtomicU64>) -> Self {
        Self {
            inner,
            calls,
            fault,
            lost: false,
            kernels: HashMap::new(),
            recordings: HashMap::new(),
        }
    }

    /// Counts a call about `subject`, and fails if it is its turn. `refused` is the error of a
    /// kernel that the driver refuses, for calls that can have it.
    fn call(
        &mut self,
        call: &str,
        subject: &str,
        refused: Option<fn(String) -> BackendError>,
    ) -> Result<(), BackendError> {
        let lost = || Err(BackendError::Lost(format!("{call} of {subject}: injected")));
        if self.lost {
            return lost();
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let (Some((nth, failure)), why) = (self.fault, "injected".to_owned()) else {
            return Ok(());
        };
        if number != nth {
            return Ok(());
        }
        Err(match (failure, refused) {
            (Failure::Lost, _) => {
                self.lost = true;
                return lost();
            }
            (Failure::OutOfMemory, _) => BackendError::OutOfMemory {
                label: subject.to_owned(),
                bytes: 4,
                why,
            },
            (Failure::Kernel, Some(refused)) => refused(subject.to_owned()),
            (Failure::Kernel | Failure::Driver, _) => BackendError::Driver {
                call: format!("{call} of {subject}"),
                why,
            },
        })
    }

    fn run(&mut self, call: &str, recording: RecordingId) -> Result<(), BackendError> {
        let kernel = self.recordings.get(&recording).cloned().unwrap_or_default();
        self.call(
            call,
            &kernel,
            Some(|kernel| BackendError::Launch {
                kernel,
                why: "injected".to_owned(),
            }),
        )
    }
}

impl Backend for Faulty {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        self.call("create_buffer", label, None)?;
        self.inner.create_buffer(label, bytes)
    }

    fn share_buffer(&mut self, source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<BufferId> {
        self.inner.share_buffer(source, range)
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        self.inner.destroy_buffer(buffer);
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        self.call("write", "a buffer", None)?;
        self.inner.write(dst, bytes)
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        self.call("read", "a buffer", None)?;
        self.inner.read(src, out)
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        self.call(
            "compile",
            &spec.to_string(),
            Some(|kernel| BackendError::Build {
                kernel,
                device: String::new(),
                log: "injected".to_owned(),
                source_excerpt: String::new(),
            }),
        )?;
        let id = self.inner.compile(spec)?;
        self.kernels.insert(id, spec.to_string());
        Ok(id)
    }

    fn compile_ahead(&mut self, specs: &[&KernelSpec], done: &mut dyn FnMut(usize)) {
        if !self.lost {
            self.inner.compile_ahead(specs, done);
        }
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        self.call("record", "commands", None)?;
        let id = self.inner.record(commands)?;
        let first = commands.iter().find_map(|command| match command {
            Command::Dispatch { kernel, .. } => self.kernels.get(kernel),
            Command::Copy { .. } | Command::Fill { .. } => None,
        });
        self.recordings.insert(id, first.cloned().unwrap_or_default());
        Ok(id)
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        self.run("submit", recording)?;
        self.inner.submit(recording, launch)
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        self.run("profile", recording)?;
        self.inner.profile(recording, launch)
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        self.call("wait", "all work", None)?;
        self.inner.wait()
    }

    fn release(&mut self, recording: RecordingId) {
        self.inner.release(recording);
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn refuses_images(&self) -> bool {
        self.inner.refuses_images()
    }

    fn replay_mode(&self) -> ReplayMode {
        self.inner.replay_mode()
    }

    fn extensions(&self) -> Vec<String> {
        self.inner.extensions()
    }
}
