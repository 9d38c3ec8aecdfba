//! The wgpu backend: WGSL on Vulkan, Metal and Direct3D 12.
//!
//! Operand `i` of [`KernelSpec::bound`] is `@group(0) @binding(i + 1)`. Binding 0 is the parameter
//! struct, in a uniform buffer of the recording, bound with a dynamic offset. wgpu itself orders
//! the dispatches of a pass and the submissions of a queue, so there are no barriers here.
//!
//! wgpu reports most errors through callbacks. An error that arrives outside an error scope is kept
//! in `Fault` and returned by the call that caused it or by the next one.

mod build;
mod record;
mod tensor_cores;
#[cfg(test)]
mod tests;

use super::compiled::Kernels;
use super::device_presets::Family;
use super::kernel::Language;
use super::{
    Backend, BackendError, BufferId, Caps, Command, DeviceKind, DeviceProfile, KernelCode, KernelId,
    KernelSpec, Launch, TensorCores,
};
use super::{OpenOptions, PackedDot, RecordingId, Stats, Vendor, View, choose, fast_local, validation};
use crate::cache::Store;
use build::Compiled;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

const NAME: &str = "wgpu";

/// Bytes of writes that may be pending in staging memory before a flush, and the largest staging
/// buffer for reads.
const PIECE: usize = 64 << 20;

/// An error that the device reported outside any call's own error scope.
#[derive(Debug, Default)]
struct Fault {
    lost: Option<String>,
    first: Option<String>,
}

/// A device opened through wgpu.
pub struct Wgpu {
    device: ::wgpu::Device,
    queue: ::wgpu::Queue,
    caps: Caps,
    /// Names of the adapter's features.
    features: Vec<String>,
    fault: Arc<Mutex<Fault>>,
    buffers: HashMap<u32, ::wgpu::Buffer>,
    next_buffer: u32,
    kernels: Kernels<Compiled>,
    recordings: HashMap<u32, record::Recording>,
    next_recording: u32,
    readback: Option<::wgpu::Buffer>,
    timers: Option<record::Timers>,
    /// Bytes written since the last submission. wgpu holds them in staging memory until then.
    pending: u64,
    /// The submission that carried the last flushed piece of writes.
    flushed: Option<::wgpu::SubmissionIndex>,
    store: Option<Arc<Store>>,
    stats: Stats,
}

fn adapters() -> Result<Vec<(::wgpu::Adapter, Caps)>, BackendError> {
    let none = |why: &str| BackendError::NoDriver {
        backend: NAME,
        why: why.to_owned(),
    };
    let wanted = ::wgpu::Backends::VULKAN | ::wgpu::Backends::METAL | ::wgpu::Backends::DX12;
    // `Instance::new` panics if no backend is compiled in.
    if !::wgpu::Instance::enabled_backend_features().intersects(wanted) {
        return Err(none(
            "this build has no Vulkan, Metal or Direct3D 12 support for this platform",
        ));
    }
    let instance = ::wgpu::Instance::new(::wgpu::InstanceDescriptor {
        backends: wanted,
        // Validation layers and debug names only on demand, through wgpu's environment variables.
        flags: ::wgpu::InstanceFlags::empty().with_env(),
        ..::wgpu::InstanceDescriptor::new_without_display_handle()
    });
    let found: Vec<_> = pollster::block_on(instance.enumerate_adapters(wanted))
        .into_iter()
        .map(|adapter| {
            let caps = caps_of(&adapter);
            (adapter, caps)
        })
        .collect();
    if found.is_empty() {
        return Err(none(
            "no Vulkan, Metal or Direct3D 12 adapter found; install the GPU's driver, or \
             `apt install mesa-vulkan-drivers` for the CPU",
        ));
    }
    Ok(found)
}

/// The device features that kernels for cooperative matrices need.
const TENSOR_CORES: ::wgpu::Features = ::wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(::wgpu::Features::SHADER_F16)
    .union(::wgpu::Features::SUBGROUP)
    .union(::wgpu::Features::SUBGROUP_BARRIER);

/// [`TensorCores::CooperativeMatrix`]: 16 x 16 halves over subgroups of 32.
fn has_tensor_cores(adapter: &::wgpu::Adapter) -> bool {
    use ::wgpu::CooperativeScalarType::{F16, F32};
    let info = adapter.get_info();
    let fits = |p: &::wgpu::CooperativeMatrixProperties| {
        [p.m_size, p.n_size, p.k_size] == [16; 3] && p.ab_type == F16 && p.cr_type == F32
    };
    adapter.features().contains(TENSOR_CORES)
        && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
        && adapter.cooperative_matrix_properties().iter().any(fits)
}

/// wgpu knows no PCI vendor ID of a device under Metal.
fn vendor(api: ::wgpu::Backend, id: u32) -> Vendor {
    match api {
        ::wgpu::Backend::Metal => Vendor::Apple,
        _ => Vendor::Pci(id),
    }
}

/// Lavapipe ends a work-item after 65,535 iterations in total.
const MAX_LOOPS: i64 = 65_000;

fn caps_of(adapter: &::wgpu::Adapter) -> Caps {
    let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
    let driver: Vec<_> = [info.driver.trim(), info.driver_info.trim()]
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect();
    let kind = match info.device_type {
        ::wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        ::wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        ::wgpu::DeviceType::Cpu => DeviceKind::Cpu,
        ::wgpu::DeviceType::VirtualGpu | ::wgpu::DeviceType::Other => DeviceKind::Other,
    };
    let vendor = vendor(info.backend, info.vendor);
    let driver = format!("{} ({})", driver.join(" "), info.backend)
        .trim_start()
        .to_owned();
    let mut profile = DeviceProfile {
        code: KernelCode::Source(Language::Wgsl),
        dedicated_memory: kind == DeviceKind::Discrete,
        // At least a vector of four words, which also keeps the pad word of an odd tensor out of
        // the next view.
        view_align: u64::from(limits.min_storage_buffer_offset_alignment).max(16),
        max_view_bytes: limits.max_storage_buffer_binding_size & !3,
        local_bytes: limits.max_compute_workgroup_storage_size,
        fast_local: fast_local(kind, vendor),
        compute_units: 0,
        max_workgroup: limits
            .max_compute_invocations_per_workgroup
            .min(limits.max_compute_workgroup_size_x),
        max_grid: limits.max_compute_workgroups_per_dimension,
        max_loops: (kind == DeviceKind::Cpu).then_some(MAX_LOOPS),
        subgroup: features
            .contains(::wgpu::Features::SUBGROUP)
            .then_some(info.subgroup_min_size),
        long_integers: features.contains(::wgpu::Features::SHADER_INT64),
        f16_math: features.contains(::wgpu::Features::SHADER_F16),
        tensor_cores: has_tensor_cores(adapter).then_some(TensorCores::CooperativeMatrix),
        packed_dot: PackedDot::Wgsl,
        ..DeviceProfile::generic_gpu()
    };
    profile.set_family(Family::named(&info.name, &driver));
    Caps {
        backend: NAME,
        profile,
        device: info.name,
        driver,
        kind,
        params_align: u64::from(limits.min_uniform_buffer_offset_alignment).max(16),
        max_buffer_bytes: limits.max_buffer_size & !3,
        memory_bytes: 0,
        priorities: false,
        refused: Vec::new(),
        profiling: features.contains(::wgpu::Features::TIMESTAMP_QUERY),
    }
}

/// The devices: the adapters of Vulkan, Metal and Direct3D 12.
pub fn list() -> Result<Vec<Caps>, BackendError> {
    Ok(adapters()?.into_iter().map(|(_, caps)| caps).collect())
}

fn keeps_pipelines(adapter: &::wgpu::Adapter) -> bool {
    adapter.features().contains(::wgpu::Features::PIPELINE_CACHE)
}

/// The device with the features that kernels use, and with pipeline caches if wanted and offered.
fn request_device(
    adapter: &::wgpu::Adapter,
    caps: &Caps,
    keeps_pipelines: bool,
) -> Result<(::wgpu::Device, ::wgpu::Queue), BackendError> {
    let usual =
        ::wgpu::Features::TIMESTAMP_QUERY | ::wgpu::Features::SHADER_F16 | ::wgpu::Features::SHADER_INT64;
    let mut required_features = adapter.features() & usual;
    if keeps_pipelines {
        required_features |= adapter.features() & ::wgpu::Features::PIPELINE_CACHE;
    }
    let mut experimental_features = ::wgpu::ExperimentalFeatures::disabled();
    if caps.profile.tensor_cores.is_some() {
        required_features |= TENSOR_CORES;
        // SAFETY: the kernels that use cooperative matrices load and store whole matrices
        // inside their own work-group memory.
        experimental_features = unsafe { ::wgpu::ExperimentalFeatures::enabled() };
    }
    let request = ::wgpu::DeviceDescriptor {
        label: Some("transformer-lite"),
        required_features,
        experimental_features,
        required_limits: adapter.limits(),
        // A model is a few large buffers; large blocks for suballocation would mostly stay
        // empty.
        memory_hints: ::wgpu::MemoryHints::MemoryUsage,
        ..Default::default()
    };
    pollster::block_on(adapter.request_device(&request))
        .map_err(|e| driver(format!("request device {}", caps.device), e))
}

/// Keeps the first error that the device reports outside of error scopes, and why it was lost.
fn report_faults(device: &::wgpu::Device, fault: &Arc<Mutex<Fault>>) {
    let store = Arc::clone(fault);
    device.on_uncaptured_error(Arc::new(move |e: ::wgpu::Error| {
        lock(&store).first.get_or_insert_with(|| words(&e));
    }));
    let store = Arc::clone(fault);
    device.set_device_lost_callback(move |reason, why| {
        lock(&store)
            .lost
            .get_or_insert_with(|| format!("{why} ({reason:?})"));
    });
}

impl Wgpu {
    /// Opens the adapter that `options` select.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDriver`], [`BackendError::NoDevice`], or the driver's error.
    pub fn open(options: &OpenOptions) -> Result<Self, BackendError> {
        let (adapters, all): (Vec<_>, Vec<_>) = adapters()?.into_iter().unzip();
        let chosen = choose(&all, options.device.as_deref())?;
        let (Some(adapter), Some(mut caps)) = (adapters.get(chosen), all.into_iter().nth(chosen)) else {
            return Err(driver("choose adapter", "index out of range"));
        };
        let (device, queue) = request_device(adapter, &caps, options.cache.is_some())?;
        let fault = Arc::new(Mutex::new(Fault::default()));
        report_faults(&device, &fault);
        validation::apply(options.cache.as_deref(), &mut caps);
        let features = adapter.features().iter_names();
        let mut opened = Self {
            device,
            queue,
            caps,
            features: features.map(|(name, _)| name.to_owned()).collect(),
            fault,
            buffers: HashMap::new(),
            next_buffer: 0,
            kernels: Kernels::new(),
            recordings: HashMap::new(),
            next_recording: 0,
            readback: None,
            timers: None,
            pending: 0,
            flushed: None,
            store: options.cache.clone().filter(|_| keeps_pipelines(adapter)),
            stats: Stats::default(),
        };
        if opened.caps.profile.tensor_cores.is_some()
            && let Some(why) = tensor_cores::refusal(&opened)
        {
            let name = &opened.caps.device;
            log::warn!("{name}: cooperative matrices are not usable, using generic kernels: {why}");
            opened.caps.profile.tensor_cores = None;
        }
        Ok(opened)
    }

    /// Returns the stored fault, if any, as the error of `call`. A lost device stays lost; other
    /// faults are reported once.
    fn check(&self, call: &str) -> Result<(), BackendError> {
        let mut fault = lock(&self.fault);
        if let Some(why) = &fault.lost {
            return Err(BackendError::Lost(format!(
                "{} during {call}: {why}",
                self.caps.device
            )));
        }
        fault.first.take().map_or(Ok(()), |why| Err(driver(call, why)))
    }

    /// Runs `f` and returns its result, or the first error that wgpu reported during it.
    fn scoped<T>(&self, f: impl FnOnce(&::wgpu::Device) -> T) -> Result<T, ::wgpu::Error> {
        let filters = [
            ::wgpu::ErrorFilter::Internal,
            ::wgpu::ErrorFilter::OutOfMemory,
            ::wgpu::ErrorFilter::Validation,
        ];
        let scopes = filters.map(|filter| self.device.push_error_scope(filter));
        let value = f(&self.device);
        let mut first = None;
        // Error scopes form a stack.
        for scope in scopes.into_iter().rev() {
            let error = pollster::block_on(scope.pop());
            first = first.or(error);
        }
        first.map_or(Ok(value), Err)
    }

    /// Creates a buffer and counts it in the statistics.
    fn allocate(
        &mut self,
        label: &str,
        bytes: u64,
        usage: ::wgpu::BufferUsages,
        contents: Option<u8>,
    ) -> Result<::wgpu::Buffer, BackendError> {
        let out_of_memory = |why: String| BackendError::OutOfMemory {
            label: label.to_owned(),
            bytes,
            why,
        };
        if bytes > self.caps.max_buffer_bytes {
            return Err(out_of_memory(format!(
                "the largest possible buffer has {} bytes",
                self.caps.max_buffer_bytes
            )));
        }
        let descriptor = ::wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes,
            usage,
            mapped_at_creation: contents.is_some(),
        };
        let buffer = self
            .scoped(|device| device.create_buffer(&descriptor))
            .map_err(|e| match e {
                ::wgpu::Error::OutOfMemory { .. } => out_of_memory(words(&e)),
                e => driver(format!("create buffer {label}"), words(&e)),
            })?;
        self.check("create buffer")?;
        if let Some(byte) = contents {
            let call = || format!("map new buffer {label}");
            let mut view = buffer.get_mapped_range_mut(..).map_err(|e| driver(call(), e))?;
            view.slice(..).fill(byte);
            drop(view);
            buffer.unmap();
            self.check("unmap new buffer")?;
        }
        self.stats.allocations += 1;
        self.stats.bytes += bytes;
        Ok(buffer)
    }

    fn forget(&mut self, buffer: &::wgpu::Buffer) {
        self.stats.bytes = self.stats.bytes.saturating_sub(buffer.size());
    }

    fn buffer(&self, call: &str, id: BufferId) -> Result<&::wgpu::Buffer, BackendError> {
        self.buffers
            .get(&id.0)
            .ok_or_else(|| driver(call, format!("buffer {} does not exist", id.0)))
    }

    /// Submits the commands together with all pending writes.
    fn queue_submit(&mut self, commands: Option<::wgpu::CommandBuffer>) -> ::wgpu::SubmissionIndex {
        self.pending = 0;
        self.queue.submit(commands)
    }

    /// Blocks until submission `index` (default: the last one) is done.
    fn poll(&self, call: &str, index: Option<::wgpu::SubmissionIndex>) -> Result<(), BackendError> {
        let kind = ::wgpu::PollType::Wait {
            submission_index: index,
            timeout: None,
        };
        // wgpu panics here if the device is lost while waiting; it holds no lock at that point.
        let answer = catch_unwind(AssertUnwindSafe(|| self.device.poll(kind)));
        self.check(call)?;
        match answer {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(driver(call, e)),
            Err(_) => Err(BackendError::Lost(format!(
                "{} during {call}: wgpu timed out",
                self.caps.device
            ))),
        }
    }

    /// The staging buffer for reads, with at least `bytes` (at most [`PIECE`]).
    fn readback(&mut self, bytes: u64) -> Result<::wgpu::Buffer, BackendError> {
        if let Some(buffer) = self.readback.as_ref().filter(|b| b.size() >= bytes) {
            return Ok(buffer.clone());
        }
        if let Some(old) = self.readback.take() {
            self.forget(&old);
        }
        let size = bytes
            .next_power_of_two()
            .max(4096)
            .min(self.caps.max_buffer_bytes)
            .max(bytes);
        let usage = ::wgpu::BufferUsages::MAP_READ | ::wgpu::BufferUsages::COPY_DST;
        let buffer = self.allocate("readback", size, usage, None)?;
        self.readback = Some(buffer.clone());
        Ok(buffer)
    }

    /// Reads bytes of `source` from `offset` on into `out`, after all earlier work.
    fn download(&mut self, source: &::wgpu::Buffer, offset: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let len = out.len() as u64;
        let staging = self.readback(len)?;
        let mut encoder = self
            .device
            .create_command_encoder(&::wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(source, offset, &staging, 0, Some(len));
        let index = self.queue_submit(Some(encoder.finish()));
        let slice = staging.slice(..len);
        let (done, answer) = mpsc::channel();
        slice.map_async(::wgpu::MapMode::Read, move |result| {
            // The receiver is gone only if this call has already failed.
            let _ = done.send(result);
        });
        let read = self
            .poll("read", Some(index))
            .and_then(|()| match answer.try_recv() {
                Ok(Ok(())) => {
                    let view = slice
                        .get_mapped_range()
                        .map_err(|e| driver("map readback buffer", e))?;
                    out.copy_from_slice(&view);
                    Ok(())
                }
                Ok(Err(e)) => Err(driver("map readback buffer", e)),
                Err(_) => Err(driver("map readback buffer", "no answer")),
            });
        if read.is_ok() {
            staging.unmap();
        } else if let Some(broken) = self.readback.take() {
            self.forget(&broken);
        }
        read.and_then(|()| self.check("read"))
    }
}

impl Backend for Wgpu {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        self.check("create buffer")?;
        let usage =
            ::wgpu::BufferUsages::STORAGE | ::wgpu::BufferUsages::COPY_SRC | ::wgpu::BufferUsages::COPY_DST;
        // Kernels store pairs, so the last pair of a tensor with an odd number of words ends one
        // word after it.
        let padded = bytes
            .next_multiple_of(16)
            .min(self.caps.max_buffer_bytes)
            .max(bytes);
        let buffer = self.allocate(label, padded, usage, None)?;
        let id = self.next_buffer;
        self.next_buffer += 1;
        self.buffers.insert(id, buffer);
        Ok(BufferId(id))
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        if let Some(old) = self.buffers.remove(&buffer.0) {
            self.forget(&old);
        }
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        self.check("write")?;
        let buffer = self.buffer("write", dst.buffer)?.clone();
        let mut offset = dst.offset;
        for piece in bytes.chunks(PIECE) {
            let len = piece.len() as u64;
            // wgpu copies the bytes into staging memory that lives until the next submission is
            // done. One piece may be in flight while the next one is filled.
            if self.pending + len > PIECE as u64 {
                let index = self.queue_submit(None);
                if let Some(previous) = self.flushed.replace(index) {
                    self.poll("write", Some(previous))?;
                }
            }
            self.queue.write_buffer(&buffer, offset, piece);
            self.pending += len;
            offset += len;
        }
        self.check("write")
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        self.check("read")?;
        let buffer = self.buffer("read", src.buffer)?.clone();
        let mut offset = src.offset;
        for piece in out.chunks_mut(PIECE) {
            self.download(&buffer, offset, piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        if let Some(id) = self.kernels.ids.get(spec) {
            return Ok(*id);
        }
        self.check("compile")?;
        let built = self.build(spec)?;
        self.kernels.add(spec, built, &mut self.stats)
    }

    fn compile_ahead(&mut self, specs: &[&KernelSpec], done: &mut dyn FnMut(usize)) {
        let built = self.kernels.build_ahead(specs, |spec| self.build(spec), done);
        self.kernels.add_all(built, &mut self.stats);
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        self.check("record")?;
        let bytes = self.stats.bytes;
        let recording = match record::Recording::new(self, commands) {
            Ok(recording) => recording,
            Err(e) => {
                // The buffers of the failed recording have been freed.
                self.stats.bytes = bytes;
                return Err(e);
            }
        };
        let id = self.next_recording;
        self.next_recording += 1;
        self.recordings.insert(id, recording);
        self.stats.recordings += 1;
        Ok(RecordingId(id))
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        self.check("submit")?;
        let Some(recording) = self.recordings.get(&recording.0) else {
            return Err(driver(
                "submit",
                format!("recording {} does not exist", recording.0),
            ));
        };
        recording.submit(&self.device, &self.queue, launch)?;
        self.pending = 0;
        self.stats.submits += 1;
        self.stats.launches += recording.commands() as u64;
        self.check("submit")
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        self.check("profile")?;
        record::profile(self, recording, launch)
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        self.check("wait")?;
        if self.pending > 0 {
            self.queue_submit(None);
        }
        self.poll("wait", None)
    }

    fn release(&mut self, recording: RecordingId) {
        if let Some(old) = self.recordings.remove(&recording.0) {
            self.stats.bytes = self.stats.bytes.saturating_sub(old.bytes());
        }
    }

    fn stats(&self) -> Stats {
        self.stats
    }

    fn extensions(&self) -> Vec<String> {
        self.features.clone()
    }
}

fn driver(call: impl Into<String>, why: impl ToString) -> BackendError {
    BackendError::Driver {
        call: call.into(),
        why: why.to_string(),
    }
}

/// Locks the fault. A panic of another holder leaves it usable, since it is only ever assigned as a
/// whole.
fn lock(fault: &Mutex<Fault>) -> std::sync::MutexGuard<'_, Fault> {
    fault.lock().unwrap_or_else(PoisonError::into_inner)
}

/// wgpu's error message with its causes.
fn words(error: &::wgpu::Error) -> String {
    let mut text = error.to_string();
    if matches!(error, ::wgpu::Error::OutOfMemory { .. }) {
        let mut cause = std::error::Error::source(error);
        while let Some(e) = cause {
            text.push_str(": ");
            text.push_str(&e.to_string());
            cause = e.source();
        }
    }
    text
}
