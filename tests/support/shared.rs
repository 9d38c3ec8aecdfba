//! A device's backend that many executors share, with guard zones and counters.

use super::{POISON, lock};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use transformer_lite::unstable::backend::kernel::KernelSpec;
use transformer_lite::unstable::backend::{
    Backend, BackendError, BufferId, Caps, Command, KernelId, Launch, RecordingId, Stats, View,
};
use transformer_lite::unstable::tensor::Bytes;

/// The buffers of a [`Shared`] with their sizes as the executor asked for them.
type Buffers = Arc<Mutex<HashMap<BufferId, u64>>>;

/// A device's backend in the hands of one executor.
pub struct Shared {
    inner: Arc<Mutex<Box<dyn Backend>>>,
    caps: Caps,
    shift: u64,
    buffers: Buffers,
    recordings: Vec<RecordingId>,
    copies: Arc<AtomicUsize>,
    traffic: Arc<Traffic>,
}

/// Bytes that went one way.
#[derive(Debug, Default)]
pub struct Traffic {
    /// From the host to buffers.
    pub written: AtomicU64,
    /// From buffers to the host.
    pub read: AtomicU64,
}

impl Traffic {
    /// What was counted since the last time, written and read.
    pub fn take(&self) -> (u64, u64) {
        let take = |n: &AtomicU64| n.swap(0, Ordering::Relaxed);
        (take(&self.written), take(&self.read))
    }
}

/// Looks at the guard zones of a [`Shared`] that an executor owns.
pub struct Guards {
    inner: Arc<Mutex<Box<dyn Backend>>>,
    shift: u64,
    buffers: Buffers,
}

impl Shared {
    pub(super) fn new(inner: Arc<Mutex<Box<dyn Backend>>>, caps: Caps) -> Self {
        Self {
            inner,
            caps,
            shift: 0,
            buffers: Arc::default(),
            recordings: Vec::new(),
            copies: Arc::default(),
            traffic: Arc::default(),
        }
    }

    /// Reports other capabilities than the device's.
    pub fn with_caps(mut self, change: impl FnOnce(&mut Caps)) -> Self {
        change(&mut self.caps);
        self
    }

    /// Counts what goes between the host and the device, and within it.
    pub fn counting_bytes(mut self, traffic: Arc<Traffic>) -> Self {
        self.traffic = traffic;
        self
    }

    /// Counts the commands of recordings that run no kernel.
    pub fn counting_copies(mut self, counter: Arc<AtomicUsize>) -> Self {
        self.copies = counter;
        self
    }

    /// Puts a guard zone before and after each buffer, so that every view has an offset, and
    /// poisons new buffers.
    pub fn guarded(mut self) -> (Self, Guards) {
        self.shift = self.caps.profile.view_align.max(64);
        let guards = Guards {
            inner: self.inner.clone(),
            shift: self.shift,
            buffers: self.buffers.clone(),
        };
        (self, guards)
    }

    fn moved(&self, v: View) -> View {
        View {
            offset: v.offset + self.shift,
            ..v
        }
    }
}

impl Guards {
    /// An error that names the first byte outside of a buffer that was written.
    pub fn check(&self) -> Result<(), String> {
        let mut inner = lock(&self.inner);
        for (buffer, bytes) in lock(&self.buffers).iter() {
            for (offset, where_) in [(0, "before"), (self.shift + bytes, "after")] {
                let mut zone = vec![0; usize::try_from(self.shift).unwrap()];
                let view = View {
                    buffer: *buffer,
                    offset,
                    len: self.shift,
                };
                inner.read(view, &mut zone).map_err(|e| e.to_string())?;
                if let Some(i) = zone.iter().position(|b| *b != POISON) {
                    return Err(format!(
                        "byte {i} of the guard zone {where_} a buffer of {bytes} bytes was written"
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Backend for Shared {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        let mut inner = lock(&self.inner);
        let whole = bytes + 2 * self.shift;
        let id = inner.create_buffer(label, whole)?;
        lock(&self.buffers).insert(id, bytes);
        if self.shift > 0 {
            let poison = vec![POISON; usize::try_from(whole).unwrap()];
            inner.write(
                View {
                    buffer: id,
                    offset: 0,
                    len: whole,
                },
                &poison,
            )?;
        }
        Ok(id)
    }

    fn share_buffer(&mut self, source: &Arc<dyn Bytes>, range: Range<usize>) -> Option<BufferId> {
        // Without guard zones, as their bytes belong to others.
        (self.shift == 0).then(|| lock(&self.inner).share_buffer(source, range))?
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        lock(&self.buffers).remove(&buffer);
        lock(&self.inner).destroy_buffer(buffer);
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        self.traffic
            .written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        lock(&self.inner).write(self.moved(dst), bytes)
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        self.traffic.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        lock(&self.inner).read(self.moved(src), out)
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        lock(&self.inner).compile(spec)
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        let copies = commands
            .iter()
            .filter(|c| !matches!(c, Command::Dispatch { .. }))
            .count();
        self.copies.fetch_add(copies, Ordering::Relaxed);
        let moved: Vec<Command> = commands
            .iter()
            .cloned()
            .map(|c| match c {
                Command::Dispatch {
                    kernel,
                    args,
                    step,
                    params,
                } => Command::Dispatch {
                    kernel,
                    args: args.into_iter().map(|v| self.moved(v)).collect(),
                    step,
                    params,
                },
                Command::Copy { src, dst } => Command::Copy {
                    src: self.moved(src),
                    dst: self.moved(dst),
                },
                Command::Fill { dst, byte } => Command::Fill {
                    dst: self.moved(dst),
                    byte,
                },
            })
            .collect();
        let id = lock(&self.inner).record(&moved)?;
        self.recordings.push(id);
        Ok(id)
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        lock(&self.inner).submit(recording, launch)
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        lock(&self.inner).profile(recording, launch)
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        lock(&self.inner).wait()
    }

    fn release(&mut self, recording: RecordingId) {
        self.recordings.retain(|r| *r != recording);
        lock(&self.inner).release(recording);
    }

    fn stats(&self) -> Stats {
        lock(&self.inner).stats()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut inner = lock(&self.inner);
        // The device may be lost; what it holds is then lost too.
        let _ = inner.wait();
        for r in self.recordings.drain(..) {
            inner.release(r);
        }
        for b in lock(&self.buffers).drain() {
            inner.destroy_buffer(b.0);
        }
    }
}
