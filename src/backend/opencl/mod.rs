//! OpenCL 1.2 or later, loaded at run time.
//!
//! One context and one in-order queue for each [`OpenCl`]; the order of commands is the queue's. A second queue,
//! made at the first call of [`Backend::profile`], measures times, so that normal work does not pay for it.
//! Views of a whole buffer are the buffer; other views become sub-buffers, which are kept as long as
//! the buffer. Every recorded dispatch has a kernel object of its own with its buffers set, so that a submission
//! sets at most the parameter struct and queues. Where the driver records ([`replay`]) it queues all of them in one call.

mod device;
mod driver;
mod parts;
mod record;
mod replay;
mod slice;
#[cfg(test)]
mod tests;
mod units;

use super::kernel::{self, KernelSpec, Language};
use super::{
    Backend, BackendError, BufferId, Caps, Command, DeviceKind, KernelId, Launch, OpenOptions, RecordingId,
    Stats, View, choose,
};
use driver::{Context, DeviceHandle, KernelObject, Program, Queue};
use record::{Armed, Block, Dispatch, DriverTime, Step};
use replay::{Recorder, Recording, Target};
use slice::Slicer;
use std::collections::HashMap;
use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

/// Capabilities of every usable device of every platform.
///
/// # Errors
///
/// [`BackendError::NoDriver`] when the library, a platform or a usable device is missing.
pub fn list() -> Result<Vec<Caps>, BackendError> {
    Ok(device::enumerate()?.into_iter().map(|(_, caps)| caps).collect())
}

/// A buffer and its sub-buffers by offset and length, in order of creation.
struct Buffer {
    parts: Vec<((u64, u64), Arc<Block>)>,
    whole: Arc<Block>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Last made, first released: NVIDIA's driver 580 crashes when many sub-buffers with one origin go in another
        // order.
        while self.parts.pop().is_some() {}
    }
}

struct Compiled {
    program: Program,
    /// The same for parts of a grid, once it was needed, or why it cannot be had.
    in_parts: Option<Result<Program, String>>,
    /// Axes of whose number of work-groups the text does not ask.
    free_axes: [bool; 3],
    /// It was said that the kernel cannot run in parts.
    told: bool,
    entry: CString,
    /// Kernel and defines, for errors.
    name: Arc<str>,
    workgroup: u32,
    /// Number of operands; the parameter struct follows them.
    operands: u32,
    params_bytes: u32,
}

/// An OpenCL device opened for work.
pub struct OpenCl {
    // Fields are dropped in this order: users of an object before the object.
    recordings: HashMap<RecordingId, Recording>,
    buffers: HashMap<BufferId, Buffer>,
    kernels: Vec<Compiled>,
    cache: HashMap<KernelSpec, KernelId>,
    slicer: Option<Slicer>,
    recorder: Recorder,
    queue: Queue,
    timed_queue: Option<Queue>,
    context: Context,
    device: DeviceHandle,
    caps: Caps,
    stats: Stats,
    /// Time in the driver; the rest of a step is ours.
    time: DriverTime,
    /// Grows whenever all that was queued is done.
    epoch: u64,
    next_id: u32,
}

impl OpenCl {
    /// Opens the device that `options` name.
    ///
    /// # Errors
    ///
    /// [`BackendError::NoDriver`] as for [`list`]; [`BackendError::NoDevice`] when none matches; otherwise the
    /// driver's refusal.
    pub fn open(options: &OpenOptions) -> Result<Self, BackendError> {
        let device = options.device.as_deref();
        let (handles, mut all): (Vec<DeviceHandle>, Vec<Caps>) = device::enumerate()?.into_iter().unzip();
        let index = choose(&all, device)?;
        let handle = *handles.get(index).ok_or_else(|| BackendError::NoDevice {
            asked: device.unwrap_or("any").to_owned(),
            found: format!("no device number {index}"),
        })?;
        let mut caps = all.swap_remove(index);
        let context =
            Context::new(handle).map_err(|code| code.at(format!("clCreateContext on {}", caps.device)))?;
        if caps.matrix_units
            && let Some(why) = units::refusal(&context, handle)
        {
            log::warn!(
                "{}: generic kernels in place of those for matrix units: {why}",
                caps.device
            );
            caps.matrix_units = false;
        }
        let slice = options.slice_nanoseconds(&caps);
        let recorder = Recorder::open(options.recording, &context, handle, &caps)?;
        let queue = context
            .queue(handle, slice.is_some())
            .map_err(|code| code.at(format!("clCreateCommandQueue on {}", caps.device)))?;
        Ok(Self {
            recordings: HashMap::new(),
            buffers: HashMap::new(),
            kernels: Vec::new(),
            cache: HashMap::new(),
            slicer: slice.map(Slicer::new),
            recorder,
            queue,
            timed_queue: None,
            context,
            device: handle,
            caps,
            stats: Stats::default(),
            time: DriverTime::default(),
            epoch: 0,
            next_id: 0,
        })
    }

    /// A number that no buffer or recording has had.
    fn new_id(&mut self) -> Result<u32, BackendError> {
        let id = self.next_id;
        self.next_id = id.checked_add(1).ok_or_else(|| BackendError::Driver {
            call: "new object".to_owned(),
            why: "more than 2^32 buffers and recordings were made".to_owned(),
        })?;
        Ok(id)
    }

    fn buffer(&self, id: BufferId) -> Result<&Buffer, BackendError> {
        self.buffers.get(&id).ok_or_else(|| unknown("buffer", id.0))
    }

    /// The whole buffer under `view` and the view's first byte in it.
    fn place(&self, view: View) -> Result<(Arc<Block>, usize), BackendError> {
        let whole = &self.buffer(view.buffer)?.whole;
        Ok((Arc::clone(whole), size(view.offset, &whole.label)?))
    }

    /// The buffer or sub-buffer for `view`.
    fn bind(&mut self, view: View) -> Result<Arc<Block>, BackendError> {
        let buffer = self
            .buffers
            .get_mut(&view.buffer)
            .ok_or_else(|| unknown("buffer", view.buffer.0))?;
        let whole = &buffer.whole;
        if view.offset == 0 && view.len == whole.bytes {
            return Ok(Arc::clone(whole));
        }
        if let Some((_, part)) = buffer
            .parts
            .iter()
            .find(|(range, _)| *range == (view.offset, view.len))
        {
            return Ok(Arc::clone(part));
        }
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
        buffer.parts.push(((view.offset, view.len), Arc::clone(&part)));
        self.stats.allocations += 1;
        Ok(part)
    }

    /// The whole text of a kernel, as it is compiled.
    fn source(&self, spec: &KernelSpec) -> Result<String, kernel::ExpandError> {
        let mut source = spec.expand(Language::OpenCl)?;
        if self.caps.kind == DeviceKind::Cpu && !self.caps.f16_math {
            // Such compilers convert halves in software, one at a time (cl/common/half.cl).
            source.insert_str(0, "#define SOFT_HALF\n");
        }
        Ok(source)
    }

    fn build(&self, spec: &KernelSpec) -> Result<Compiled, BackendError> {
        let name = spec.to_string();
        let driver_words = format!("{} ({})", self.caps.device, self.caps.driver);
        let refused = |why: String| BackendError::Driver {
            call: format!("kernel {name}"),
            why,
        };
        let failed = |log: String, source_excerpt: String| BackendError::Build {
            kernel: name.clone(),
            device: driver_words.clone(),
            log,
            source_excerpt,
        };
        let check_workgroup = |limit: u64| {
            if u64::from(spec.workgroup) > limit {
                Err(refused(format!(
                    "work-groups of {} work-items asked for, {} allows {limit}",
                    spec.workgroup, self.caps.device
                )))
            } else {
                Ok(())
            }
        };
        if spec.workgroup == 0 || spec.params_bytes() == 0 {
            return Err(refused(
                "a work-group and the parameter struct must not be empty".to_owned(),
            ));
        }
        check_workgroup(u64::from(self.caps.max_workgroup))?;
        let source = self
            .source(spec)
            .map_err(|error| failed(error.why, kernel::excerpt(spec.kernel.cl, None)))?;
        let entry = CString::new(spec.kernel.name)
            .map_err(|_| refused("the kernel's name contains a zero byte".to_owned()))?;
        let call = |call: &str| format!("{call} of kernel {name}");

        let program = self
            .context
            .program(&source)
            .map_err(|code| code.at(call("clCreateProgramWithSource")))?;
        if let Err(code) = program.build(self.device) {
            let log = match program.build_log(self.device) {
                Ok(log) if log.is_empty() => format!("clBuildProgram: {code}, and the compiler says nothing"),
                Ok(log) => log,
                Err(log_code) => format!("clBuildProgram: {code}; no log: {log_code}"),
            };
            let line = error_line(&log, source.lines().count());
            return Err(failed(log, kernel::excerpt(&source, line)));
        }
        let object = program.kernel(&entry).map_err(|code| {
            failed(
                format!(
                    "clCreateKernel: {code}; the text has no kernel of the name `{}`",
                    spec.kernel.name
                ),
                kernel::excerpt(&source, None),
            )
        })?;
        let operands = u32::try_from(spec.bound().count()).unwrap_or(u32::MAX);
        let found = object
            .arg_count()
            .map_err(|code| code.at(call("clGetKernelInfo")))?;
        if found != u64::from(operands) + 1 {
            return Err(refused(format!(
                "{operands} operands and the parameters expected, the compiled kernel takes {found} arguments"
            )));
        }
        let limit = object
            .max_workgroup(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_WORK_GROUP_SIZE)")))?;
        // NVIDIA's driver tells of kernels with many registers what it would take if their text did not require a size, as it does: such
        // a kernel was compiled for that.
        if !spec.kernel.needs_matrix_units(Language::OpenCl) {
            check_workgroup(limit)?;
        }
        let local_bytes = object
            .local_bytes(self.device)
            .map_err(|code| code.at(call("clGetKernelWorkGroupInfo(CL_KERNEL_LOCAL_MEM_SIZE)")))?;
        if local_bytes > u64::from(self.caps.local_bytes) {
            return Err(refused(format!(
                "needs {local_bytes} bytes of local memory, {} has {}",
                self.caps.device, self.caps.local_bytes
            )));
        }
        Ok(Compiled {
            program,
            in_parts: None,
            free_axes: [0, 1, 2].map(|axis| {
                !source.contains("get_global_size(") && !source.contains(&format!("get_num_groups({axis})"))
            }),
            told: false,
            entry,
            name: name.into(),
            workgroup: spec.workgroup,
            operands,
            params_bytes: spec.params_bytes(),
        })
    }

    fn prepare(
        &mut self,
        id: KernelId,
        args: &[View],
        step: u32,
        params: &Range<u32>,
    ) -> Result<Dispatch, BackendError> {
        let blocks = args
            .iter()
            .map(|view| self.bind(*view))
            .collect::<Result<Vec<_>, _>>()?;
        let kernel = self
            .kernels
            .get(id.0 as usize)
            .ok_or_else(|| unknown("kernel", id.0))?;
        let refused = |why: String| BackendError::Driver {
            call: format!("kernel {}", kernel.name),
            why,
        };
        if blocks.len() != kernel.operands as usize {
            return Err(refused(format!(
                "{} views expected, {} given",
                kernel.operands,
                blocks.len()
            )));
        }
        if params.end.checked_sub(params.start) != Some(kernel.params_bytes) {
            return Err(refused(format!(
                "{} bytes of parameters expected, the range {params:?} given",
                kernel.params_bytes
            )));
        }
        let capacity = kernel.params_bytes as usize;
        let whole = Armed {
            object: with_operands(&kernel.program, kernel, &blocks)?,
            held: Vec::with_capacity(capacity),
        };
        Ok(Dispatch {
            kernel: id,
            whole,
            in_parts: None,
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
            time: &mut self.time,
            epoch: self.epoch,
        }
    }

    /// Notes that nothing is queued any more.
    fn all_done(&mut self) -> Result<(), BackendError> {
        self.epoch += 1;
        let drained = match &mut self.slicer {
            Some(slicer) => slicer.drain(0),
            None => Ok(()),
        };
        self.stats.longest_slice_ns = self.slicer.as_ref().map_or(0, |s| s.longest);
        drained
    }
}

/// A kernel object of `program` with its operands set.
fn with_operands(
    program: &Program,
    kernel: &Compiled,
    blocks: &[Arc<Block>],
) -> Result<KernelObject, BackendError> {
    let mut object = program
        .kernel(&kernel.entry)
        .map_err(|code| code.at(format!("clCreateKernel of kernel {}", kernel.name)))?;
    for (index, block) in (0u32..).zip(blocks) {
        object.set_mem(index, &block.mem).map_err(|code| {
            block.error(
                &format!("clSetKernelArg of kernel {}, operand {index}", kernel.name),
                code,
            )
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

/// `bytes` as a size of this machine's address width.
fn size(bytes: u64, label: &str) -> Result<usize, BackendError> {
    usize::try_from(bytes).map_err(|_| BackendError::OutOfMemory {
        label: label.to_owned(),
        bytes,
        why: "more than this machine can address".to_owned(),
    })
}

/// The first line number that a compiler's log gives for an error, in the form `:<line>:<column>`.
fn error_line(log: &str, lines: usize) -> Option<usize> {
    let place = |text: &str| {
        let mut fields = text
            .split(':')
            .map(|field| field.trim().parse::<usize>().ok())
            .skip(1)
            .peekable();
        while let Some(field) = fields.next() {
            if let (Some(line), Some(Some(_))) = (field, fields.peek()) {
                return Some(line);
            }
        }
        None
    };
    let numbers = log
        .lines()
        .filter(|text| text.contains("error"))
        .filter_map(place);
    numbers.into_iter().find(|line| (1..=lines).contains(line))
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
        let mem = self
            .context
            .buffer(size(bytes, label)?)
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
        self.all_done()
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
        if let Some(id) = self.cache.get(spec) {
            return Ok(*id);
        }
        let id = KernelId(
            u32::try_from(self.kernels.len()).map_err(|_| BackendError::Driver {
                call: format!("kernel {spec}"),
                why: "more than 2^32 kernels were compiled".to_owned(),
            })?,
        );
        let kernel = self.build(spec)?;
        self.kernels.push(kernel);
        self.cache.insert(spec.clone(), id);
        self.stats.compiles += 1;
        Ok(id)
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
        let submitted = match self.slicer.take() {
            Some(mut slicer) => {
                let submitted = self.submit_in_slices(recording, &mut found, launch, &mut slicer);
                self.slicer = Some(slicer);
                submitted
            }
            None => found.submit(launch, &mut self.target()),
        };
        self.recordings.insert(recording, found);
        self.stats.recorded_submits += u64::from(submitted?);
        self.stats.submits += 1;
        self.time
            .of(|| self.queue.flush())
            .map_err(|code| code.while_waiting("clFlush"))
    }

    fn profile(&mut self, recording: RecordingId, launch: &Launch) -> Result<Vec<u64>, BackendError> {
        self.wait()?;
        let queue = match &mut self.timed_queue {
            Some(queue) => queue,
            none => none.insert(
                self.context
                    .queue(self.device, true)
                    .map_err(|code| code.at("clCreateCommandQueue with CL_QUEUE_PROFILING_ENABLE"))?,
            ),
        };
        let found = self
            .recordings
            .get_mut(&recording)
            .ok_or_else(|| unknown("recording", recording.0))?;
        // Its values go into the kernel objects, from which some drivers take what they replay.
        found.forget();
        let steps = &mut found.steps;
        let mut events = Vec::with_capacity(steps.len());
        let mut failure = None;
        for step in steps.iter_mut() {
            match step.enqueue(queue, launch, None, true, &mut self.time) {
                Ok(event) => events.push(event),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        // Also after a failure: what was queued must be done before other work starts on the first queue.
        let finished = queue.finish();
        if let Some(error) = failure {
            return Err(error);
        }
        self.stats.submits += 1;
        for (step, event) in steps.iter().zip(&events) {
            if let Some(event) = event {
                event.check().map_err(|code| step.failed(code))?;
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
            log::warn!("opencl: while a recording is freed: {error}");
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
}

impl Drop for OpenCl {
    fn drop(&mut self) {
        // Objects are freed only once the device no longer works on them.
        if let Err(error) = self.wait() {
            log::warn!("opencl: while closing {}: {error}", self.caps.device);
        }
    }
}
