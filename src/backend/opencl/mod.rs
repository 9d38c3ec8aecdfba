//! OpenCL 1.2 or later, loaded at run time.
//!
//! Each [`OpenCl`] has one context and one in-order queue, which orders all commands. The first
//! call of [`Backend::profile`] creates a second queue for timing, so that normal work does not pay
//! for it. A view of a whole buffer is the buffer itself. Other views become sub-buffers, which
//! live as long as the buffer, as do the images created from them. Every recorded dispatch has its
//! own kernel object with its buffers set, so a submission only sets the parameter struct and
//! queues it. If the driver can record (`replay`), one call queues all dispatches.

mod build;
mod device;
mod driver;
mod image;
mod priority;
mod record;
mod replay;
mod slice;
mod tensor_cores;
#[cfg(test)]
mod tests;

use super::compiled::Kernels;
use super::kernel::KernelSpec;
use super::kernel::image::{ImageKind, Pixel};
use super::{
    Backend, BackendError, BufferId, Caps, Command, KernelId, Launch, OpenOptions, PackedDot, Priority,
    RecordingId, Stats, View, choose, validation,
};
use crate::cache::Store;
use build::{Builder, Compiled};
pub use device::name_library;
use driver::{Context, DeviceHandle, KernelObject, Queue};
use priority::{Hints, Opened};
use record::{Block, DriverTime, PreparedDispatch, Step};
use replay::{Recorder, Recording, Target};
use slice::Slicer;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The devices: the usable ones of every platform.
pub fn list() -> Result<Vec<Caps>, BackendError> {
    Ok(device::enumerate()?.into_iter().map(|(_, caps)| caps).collect())
}

/// How a kernel sees a range of a buffer: as bytes (`None`) or as pixels.
type ViewKind = Option<(ImageKind, Pixel)>;

/// A buffer with its sub-buffers and images by offset, length and form, in order of creation.
struct Buffer {
    parts: Vec<((u64, u64, ViewKind), Arc<Block>)>,
    whole: Arc<Block>,
    /// Its size in bytes, including the padding for the last rows of images.
    room: u64,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Released in reverse order of creation: NVIDIA's driver 580 crashes if many sub-buffers
        // with one origin are released in another order.
        while self.parts.pop().is_some() {}
    }
}

/// An OpenCL device opened for work.
pub struct OpenCl {
    // Fields are dropped in this order: users of an object before the object.
    recordings: HashMap<RecordingId, Recording>,
    buffers: HashMap<BufferId, Buffer>,
    kernels: Kernels<Compiled>,
    slicer: Option<Slicer>,
    recorder: Recorder,
    queue: Queue,
    timed_queue: Option<Queue>,
    context: Context,
    device: DeviceHandle,
    caps: Caps,
    hints: Hints,
    priority: Option<Priority>,
    store: Option<Arc<Store>>,
    stats: Stats,
    /// The driver has refused an image or a kernel that reads one; no more are requested.
    images_refused: bool,
    /// Time spent in the driver.
    time: DriverTime,
    /// Incremented whenever all queued work is done.
    epoch: u64,
    next_id: u32,
}

impl OpenCl {
    /// Opens the device that `options` select.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDriver`] as for [`list`]; [`BackendError::NoDevice`] if none matches;
    /// otherwise the driver's error.
    pub fn open(options: &OpenOptions) -> Result<Self, BackendError> {
        let device = options.device.as_deref();
        let (handles, mut all): (Vec<DeviceHandle>, Vec<Caps>) = device::enumerate()?.into_iter().unzip();
        let index = choose(&all, device)?;
        let handle = *handles.get(index).ok_or_else(|| BackendError::NoDevice {
            asked: device.unwrap_or("any").to_owned(),
            found: format!("device {index} does not exist"),
        })?;
        let mut caps = all.swap_remove(index);
        let priority = options.priority.or(Priority::default_on(caps.kind));
        let slice = options.slice_nanoseconds(&caps);
        let Opened {
            context,
            queue,
            hints,
        } = priority::open(handle, &caps.device, Hints::of(handle), priority, slice.is_some())?;
        caps.priorities = hints.any_priority();
        caps.profile.images = image::open(&context, &caps, options.images)?;
        if let Some(kind) = caps.profile.images.reads {
            caps.profile.view_align = caps.profile.view_align.max(caps.profile.images.view_align(kind));
        }
        let mut stats = Stats::default();
        let store = options.cache.as_deref();
        if caps.profile.tensor_cores.is_some()
            && let Some(why) = tensor_cores::refusal(Builder::new(&context, handle, &caps, store), &mut stats)
        {
            log::warn!(
                "{}: tensor cores are not usable, using generic kernels: {why}",
                caps.device
            );
            caps.refused.push(format!("inline PTX for tensor cores: {why}"));
            (caps.profile.tensor_cores, caps.profile.packed_dot) = (None, PackedDot::None);
        }
        if let Some(why) = tensor_cores::dot_refusal(Builder::new(&context, handle, &caps, store), &mut stats)
        {
            let what = format!("packed dot products ({:?}): {why}", caps.profile.packed_dot);
            log::info!("{}: not using {what}", caps.device);
            caps.refused.push(what);
            caps.profile.packed_dot = PackedDot::None;
        }
        validation::apply(options.cache.as_deref(), &mut caps);
        let recorder = Recorder::open(options.recording, &context, handle, &caps)?;
        Ok(Self {
            recordings: HashMap::new(),
            buffers: HashMap::new(),
            kernels: Kernels::new(),
            slicer: slice.map(Slicer::new),
            recorder,
            queue,
            timed_queue: None,
            context,
            device: handle,
            caps,
            hints,
            priority,
            store: options.cache.clone(),
            stats,
            images_refused: false,
            time: DriverTime::default(),
            epoch: 0,
            next_id: 0,
        })
    }

    fn builder(&self) -> Builder<'_> {
        Builder::new(&self.context, self.device, &self.caps, self.store.as_deref())
    }

    /// A number that no buffer or recording has had before.
    fn new_id(&mut self) -> Result<u32, BackendError> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or_else(|| BackendError::Driver {
            call: "new object".to_owned(),
            why: "more than 2^32 buffers and recordings were created".to_owned(),
        })?;
        Ok(id)
    }

    fn buffer(&self, id: BufferId) -> Result<&Buffer, BackendError> {
        self.buffers.get(&id).ok_or_else(|| unknown("buffer", id.0))
    }

    /// The buffer that contains `view`, and the view's first byte in it.
    fn place(&self, view: View) -> Result<(Arc<Block>, usize), BackendError> {
        let whole = &self.buffer(view.buffer)?.whole;
        Ok((Arc::clone(whole), size(view.offset, &whole.label)?))
    }

    /// The buffer, sub-buffer or image for `view`.
    fn bind(&mut self, view: View, form: ViewKind) -> Result<Arc<Block>, BackendError> {
        let buffer = self.buffer(view.buffer)?;
        let whole = &buffer.whole;
        if view.offset == 0 && (view.len == whole.bytes || view.len == buffer.room) && form.is_none() {
            return Ok(Arc::clone(whole));
        }
        let key = (view.offset, view.len, form);
        if let Some((_, part)) = buffer.parts.iter().find(|(k, _)| *k == key) {
            return Ok(Arc::clone(part));
        }
        let part = match form {
            None => self.sub_buffer(view)?,
            Some((kind, pixel)) => self.image_of(view, kind, pixel)?,
        };
        if let Some(buffer) = self.buffers.get_mut(&view.buffer) {
            buffer.parts.push((key, Arc::clone(&part)));
        }
        Ok(part)
    }

    fn sub_buffer(&mut self, view: View) -> Result<Arc<Block>, BackendError> {
        let whole = &self.buffer(view.buffer)?.whole;
        let mem = whole
            .mem
            .sub_buffer(size(view.offset, &whole.label)?, size(view.len, &whole.label)?)
            .map_err(|code| {
                whole.error(
                    &format!("clCreateSubBuffer of {} bytes at {}", view.len, view.offset),
                    code,
                )
            })?;
        let part = Arc::new(Block {
            mem,
            label: Arc::clone(&whole.label),
            bytes: view.len,
        });
        self.stats.allocations += 1;
        Ok(part)
    }

    fn prepare(
        &mut self,
        id: KernelId,
        args: &[View],
        step: u32,
        params: &Range<u32>,
    ) -> Result<PreparedDispatch, BackendError> {
        let (id, blocks) = self.operands(id, args)?;
        let kernel = self.kernels.get(id)?;
        let refused = |why: String| BackendError::Driver {
            call: format!("kernel {}", kernel.name),
            why,
        };
        if blocks.len() != kernel.operands as usize {
            return Err(refused(format!(
                "expected {} views, found {}",
                kernel.operands,
                blocks.len()
            )));
        }
        if params.end.checked_sub(params.start) != Some(kernel.params_bytes) {
            return Err(refused(format!(
                "expected {} bytes of parameters, found the range {params:?}",
                kernel.params_bytes
            )));
        }
        Ok(PreparedDispatch {
            object: with_operands(kernel, &blocks)?,
            held: Vec::with_capacity(kernel.params_bytes as usize),
            name: Arc::clone(&kernel.name),
            workgroup: kernel.workgroup,
            params_index: kernel.operands,
            params: params.start as usize..params.end as usize,
            step: step as usize,
            args: blocks,
        })
    }

    fn target(&mut self) -> Target<'_> {
        Target {
            queue: &self.queue,
            recorder: &mut self.recorder,
            slicer: self.slicer.as_mut(),
            time: &mut self.time,
            epoch: self.epoch,
        }
    }

    /// Called when nothing is queued any more.
    fn all_done(&mut self) -> Result<(), BackendError> {
        self.epoch += 1;
        let drained = match &mut self.slicer {
            Some(slicer) => slicer.drain(0, &self.queue),
            None => Ok(()),
        };
        if let Some(slicer) = &self.slicer {
            self.stats.longest_slice_ns = slicer.longest;
        }
        drained
    }
}

/// A kernel object with its operands set.
fn with_operands(kernel: &Compiled, blocks: &[Arc<Block>]) -> Result<KernelObject, BackendError> {
    let name = &kernel.name;
    let mut object = kernel
        .program
        .kernel(&kernel.entry)
        .map_err(|code| code.at(format!("clCreateKernel of kernel {name}")))?;
    for (index, block) in (0u32..).zip(blocks) {
        object.set_mem(index, &block.mem).map_err(|code| {
            block.error(&format!("clSetKernelArg of kernel {name}, operand {index}"), code)
        })?;
    }
    Ok(object)
}

fn unknown(what: &str, id: u32) -> BackendError {
    BackendError::Driver {
        call: format!("{what} {id}"),
        why: "unknown or freed".to_owned(),
    }
}

/// `bytes` as a `usize`.
fn size(bytes: u64, label: &str) -> Result<usize, BackendError> {
    usize::try_from(bytes).map_err(|_| BackendError::OutOfMemory {
        label: label.to_owned(),
        bytes,
        why: "it exceeds the address range of this machine".to_owned(),
    })
}

impl Backend for OpenCl {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn create_buffer(&mut self, label: &str, bytes: u64) -> Result<BufferId, BackendError> {
        let out_of_memory = |why: String| BackendError::OutOfMemory {
            label: label.to_owned(),
            bytes,
            why,
        };
        if bytes > self.caps.max_buffer_bytes {
            return Err(out_of_memory(format!(
                "the largest buffer of {} is {} bytes",
                self.caps.device, self.caps.max_buffer_bytes
            )));
        }
        let id = BufferId(self.new_id()?);
        let room = bytes.next_multiple_of(self.caps.profile.images.room());
        let room = if room > self.caps.max_buffer_bytes {
            bytes
        } else {
            room
        };
        let mem = self
            .context
            .buffer(size(room, label)?)
            .map_err(|code| match code.0 {
                _ if code.is_out_of_memory() => out_of_memory(format!("clCreateBuffer: {code}")),
                opencl3::error_codes::CL_OUT_OF_RESOURCES => out_of_memory(format!("clCreateBuffer: {code}")),
                _ => code.at(format!("clCreateBuffer of {label}, {bytes} bytes")),
            })?;
        let whole = Arc::new(Block {
            mem,
            label: label.into(),
            bytes,
        });
        self.buffers.insert(
            id,
            Buffer {
                parts: Vec::new(),
                whole,
                room,
            },
        );
        self.stats.allocations += 1;
        self.stats.bytes += bytes;
        Ok(id)
    }

    fn destroy_buffer(&mut self, buffer: BufferId) {
        if let Some(buffer) = self.buffers.remove(&buffer) {
            self.stats.bytes -= buffer.whole.bytes;
        }
    }

    fn write(&mut self, dst: View, bytes: &[u8]) -> Result<(), BackendError> {
        let (block, offset) = self.place(dst)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.time.of(|| self.queue.write(&block.mem, offset, bytes));
        written.map_err(|code| {
            if code.is_out_of_memory() {
                block.error("clEnqueueWriteBuffer", code)
            } else {
                code.while_waiting(format!("clEnqueueWriteBuffer to buffer {}", block.label))
            }
        })?;
        // The call returned after it read the bytes, which does not cover earlier commands; slices
        // must be waited for.
        if self.slicer.is_some() {
            self.all_done()?;
        }
        Ok(())
    }

    fn read(&mut self, src: View, out: &mut [u8]) -> Result<(), BackendError> {
        let (block, offset) = self.place(src)?;
        if out.is_empty() {
            return Ok(());
        }
        let read = self.time.of(|| self.queue.read(&block.mem, offset, out));
        read.map_err(|code| {
            if code.is_out_of_memory() {
                block.error("clEnqueueReadBuffer", code)
            } else {
                code.while_waiting(format!("clEnqueueReadBuffer from buffer {}", block.label))
            }
        })?;
        self.all_done()
    }

    fn compile(&mut self, spec: &KernelSpec) -> Result<KernelId, BackendError> {
        if let Some(id) = self.kernels.ids.get(spec) {
            return Ok(*id);
        }
        let reads_images = !spec.images.is_empty();
        if reads_images && self.images_refused {
            return self.compile_without_images(spec);
        }
        match self.builder().build(spec) {
            Err(why @ BackendError::Build { .. }) if reads_images => {
                self.refuse_images(&why);
                self.compile_without_images(spec)
            }
            built => self.kernels.add(spec, built?, &mut self.stats),
        }
    }

    fn compile_ahead(&mut self, specs: &[&KernelSpec], done: &mut dyn FnMut(usize)) {
        let builder = self.builder();
        let built = self.kernels.build_ahead(specs, |spec| builder.build(spec), done);
        self.kernels.add_all(built, &mut self.stats);
    }

    fn record(&mut self, commands: &[Command]) -> Result<RecordingId, BackendError> {
        let mut steps = Vec::with_capacity(commands.len());
        for command in commands {
            steps.push(match command {
                Command::Dispatch {
                    kernel,
                    args,
                    step,
                    params,
                } => Step::Dispatch(self.prepare(*kernel, args, *step, params)?),
                Command::Copy { src, dst } => {
                    let src_place = self.place(*src)?;
                    let bytes = size(src.len, &src_place.0.label)?;
                    Step::Copy {
                        src: src_place,
                        dst: self.place(*dst)?,
                        bytes,
                    }
                }
                Command::Fill { dst, byte } => {
                    let place = self.place(*dst)?;
                    let bytes = size(dst.len, &place.0.label)?;
                    Step::Fill {
                        dst: place,
                        bytes,
                        byte: *byte,
                    }
                }
            });
        }
        let id = RecordingId(self.new_id()?);
        self.recordings.insert(id, Recording::new(steps));
        self.stats.recordings += 1;
        Ok(id)
    }

    fn submit(&mut self, recording: RecordingId, launch: &Launch) -> Result<(), BackendError> {
        let mut found = self
            .recordings
            .remove(&recording)
            .ok_or_else(|| unknown("recording", recording.0))?;
        let submitted = found.submit(recording, launch, &mut self.target());
        let launches = found.steps.len() as u64;
        self.recordings.insert(recording, found);
        self.stats.replayed_submits += u64::from(submitted?);
        self.stats.launches += launches;
        self.stats.submits += 1;
        Ok(())
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        self.wait()?;
        let queue = match &mut self.timed_queue {
            Some(queue) => queue,
            none => none.insert(priority::timed_queue(
                &self.context,
                self.device,
                self.hints,
                self.priority,
            )?),
        };
        let found = self
            .recordings
            .get_mut(&recording)
            .ok_or_else(|| unknown("recording", recording.0))?;
        // The run sets new values in the kernel objects, from which some drivers take what they
        // replay.
        found.forget();
        let steps = &mut found.steps;
        let mut events = Vec::with_capacity(steps.len());
        let mut failure = None;
        for step in steps.iter_mut() {
            match step.enqueue(queue, launch, true, &mut self.time) {
                Ok(event) => events.push(event),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        // Also after a failure: queued work must be done before other work starts on the first
        // queue.
        let finished = queue.finish();
        if let Some(error) = failure {
            return Err(error);
        }
        self.stats.submits += 1;
        for (step, event) in steps.iter().zip(&events) {
            if let Some(event) = event {
                event.check().map_err(|code| code.while_waiting(step.name()))?;
            }
        }
        finished.map_err(|code| code.while_waiting("clFinish"))?;
        let time = |event: &Option<driver::Event>| event.as_ref().map_or(Ok(0), driver::Event::nanoseconds);
        events
            .iter()
            .map(|event| time(event).map_err(|code| code.at("clGetEventProfilingInfo")))
            .collect()
    }

    fn wait(&mut self) -> Result<(), BackendError> {
        self.time
            .of(|| self.queue.finish())
            .map_err(|code| code.while_waiting("clFinish"))?;
        self.all_done()
    }

    fn release(&mut self, recording: RecordingId) {
        let running = self
            .recordings
            .get(&recording)
            .is_some_and(|r| r.may_run(self.epoch));
        if running && let Err(error) = self.wait() {
            log::warn!("opencl: error while freeing a recording: {error}");
        }
        self.recordings.remove(&recording);
        if let Some(slicer) = &mut self.slicer {
            slicer.forget(recording);
        }
    }

    fn stats(&self) -> Stats {
        Stats {
            driver_ns: self.time.nanoseconds,
            ..self.stats
        }
    }

    fn replay_mode(&self) -> super::ReplayMode {
        self.recorder.way()
    }

    fn refuses_images(&self) -> bool {
        self.images_refused
    }

    fn extensions(&self) -> Vec<String> {
        device::extensions(self.device)
    }
}

impl Drop for OpenCl {
    fn drop(&mut self) {
        // Objects are freed only after the device has finished with them.
        if let Err(error) = self.wait() {
            log::warn!("opencl: error while closing {}: {error}", self.caps.device);
        }
    }
}
