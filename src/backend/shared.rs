//! One device shared by several owners.

use super::kernel::KernelSpec;
use super::tunable::Tuned;
use super::{
    Backend, BackendError, BufferId, Caps, Command, DeviceProfile, KernelId, Launch, Quarantined,
    RecordingId, ReplayMode, Stats, View, special,
};
use crate::cache::Store;
use crate::tensor::Bytes;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle to a backend that other threads may hold too. Each call has exclusive use of the
/// device, so calls are serialized, and what each holder queues stays in order. Holders must not
/// write to one another's buffers. The backend closes with its last handle.
#[derive(Clone)]
pub struct SharedBackend {
    backend: Arc<Mutex<Box<dyn Backend>>>,
    caps: Arc<Caps>,
}

impl SharedBackend {
    /// Wraps a backend in its first handle.
    pub fn new(backend: Box<dyn Backend>) -> Self {
        Self {
            caps: Arc::new(backend.caps().clone()),
            backend: Arc::new(Mutex::new(backend)),
        }
    }

    /// A handle to the same device with one more variant quarantined.
    #[must_use]
    pub fn without(&self, variant: Quarantined) -> Self {
        self.with(|device| device.quarantine(variant))
    }

    /// A handle to the same device whose plans use no images.
    #[must_use]
    pub fn without_images(&self) -> Self {
        self.with(|device| device.images.reads = None)
    }

    /// A handle to the same device with these measured settings.
    #[must_use]
    pub fn tuned(&self, tuned: Vec<Tuned>) -> Self {
        self.with(|device| device.tuned = tuned)
    }

    /// A handle to the same device, after finding out whether it keeps NaN and infinities.
    #[must_use]
    pub fn tried(&self, store: Option<&Store>) -> Self {
        let keeps = special::keeps(&mut self.clone(), store);
        self.with(|device| device.keeps_special = keeps)
    }

    /// A handle to the same device whose plans align views to `align`, a multiple of what the
    /// device needs.
    pub(crate) fn aligned(&self, align: u64) -> Self {
        self.with(|device| device.view_align = align)
    }

    fn with(&self, change: impl FnOnce(&mut DeviceProfile)) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            caps: Arc::new(Caps::clone(&self.caps).with(change)),
        }
    }

    /// Locks the device for one call. Fails if an earlier call panicked, since the driver's state
    /// is then unknown.
    fn turn(&self) -> Result<MutexGuard<'_, Box<dyn Backend>>, BackendError> {
        let poisoned = |_| BackendError::Lost("a thread panicked during a call".to_owned());
        self.backend.lock().map_err(poisoned)
    }

    /// Locks the device for a call that cannot fail and only frees or counts.
    fn turn_anyway(&self) -> MutexGuard<'_, Box<dyn Backend>> {
        self.backend.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for SharedBackend {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        self.turn()?.create_buffer(label, bytes)
    }

    fn share_buffer(&mut self, source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<BufferId> {
        self.turn().ok()?.share_buffer(source, range)
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        self.turn_anyway().destroy_buffer(buffer);
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        self.turn()?.write(dst, bytes)
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        self.turn()?.read(src, out)
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        self.turn()?.compile(spec)
    }

    fn compile_ahead(&mut self, specs: &[&KernelSpec], done: &mut dyn FnMut(usize)) {
        if let Ok(mut backend) = self.turn() {
            backend.compile_ahead(specs, done);
        }
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        self.turn()?.record(commands)
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        self.turn()?.submit(recording, launch)
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        self.turn()?.profile(recording, launch)
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        self.turn()?.wait()
    }

    fn release(&mut self, recording: RecordingId) {
        self.turn_anyway().release(recording);
    }

    fn stats(&self) -> Stats {
        self.turn_anyway().stats()
    }

    fn replay_mode(&self) -> ReplayMode {
        self.turn_anyway().replay_mode()
    }

    fn refuses_images(&self) -> bool {
        self.turn_anyway().refuses_images()
    }

    fn extensions(&self) -> Vec<String> {
        self.turn_anyway().extensions()
    }
}
