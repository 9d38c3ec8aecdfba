//! Recordings: bind groups and helper buffers are created once; commands are encoded for each
//! submission, because wgpu consumes a command buffer when it is submitted.

use super::{BackendError, Command, KernelId, Launch, RecordingId, View, Wgpu, driver, words};
use crate::num;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;

/// Largest helper buffer for fills and for copies within one buffer, in bytes.
const CHUNK: u64 = 4 << 20;

/// Number of dispatches submitted before the next ones are encoded. Encoding a dispatch takes some
/// microseconds, about as long as running it. Each part is twice as large as the one before,
/// because a submission has a fixed cost.
const FIRST_PART: usize = 16;

/// The commands in the form in which they are encoded.
pub(super) struct Recording {
    segments: Vec<Segment>,
    commands: usize,
    /// Parameter structs of the launch; `None` without dispatches.
    params: Option<::wgpu::Buffer>,
    /// Bytes of [`Launch::params`] that the dispatches refer to.
    params_used: usize,
    helpers: Vec<::wgpu::Buffer>,
}

/// The contents of one compute pass, or of the space between two.
enum Segment {
    Pass(Vec<PreparedDispatch>),
    Transfer(Transfer),
}

struct PreparedDispatch {
    command: usize,
    kernel: KernelId,
    pipeline: ::wgpu::ComputePipeline,
    group: ::wgpu::BindGroup,
    offset: u32,
    step: u32,
}

struct Transfer {
    command: usize,
    dst: ::wgpu::Buffer,
    offset: u64,
    len: u64,
    from: Source,
}

enum Source {
    Zero,
    /// Copies of a whole buffer.
    Pattern(::wgpu::Buffer),
    /// A range of another buffer that starts at this offset.
    Buffer(::wgpu::Buffer, u64),
    /// A range of the target itself that starts at this offset, copied through a helper buffer
    /// because WebGPU forbids copies within one buffer.
    Itself(u64, ::wgpu::Buffer),
}

/// Timestamp queries and the buffer into which they are resolved.
pub(super) struct Timers {
    sets: Vec<::wgpu::QuerySet>,
    resolved: ::wgpu::Buffer,
    /// Number of commands that can be timed.
    capacity: usize,
}

/// Commands timed by one query set; each takes two queries.
const TIMES_PER_SET: usize = ::wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

impl Recording {
    /// Number of commands in a submission.
    pub(super) fn commands(&self) -> usize {
        self.commands
    }

    /// Prepares `commands`. The buffers that it allocates count in the backend's statistics.
    pub(super) fn new(backend: &mut Wgpu, commands: &[Command]) -> Result<Self, BackendError> {
        let (params, params_used) = params_buffer(backend, commands)?;
        let mut this = Self {
            segments: Vec::new(),
            commands: commands.len(),
            params,
            params_used,
            helpers: Vec::new(),
        };
        let mut groups: HashMap<(KernelId, &[View]), ::wgpu::BindGroup> = HashMap::new();
        let mut patterns = BTreeMap::new();
        let bounce = this.bounce_buffer(backend, commands)?;
        for (number, command) in commands.iter().enumerate() {
            match command {
                Command::Dispatch {
                    kernel,
                    args,
                    step,
                    params,
                } => {
                    let key = (*kernel, args.as_slice());
                    let group = match groups.get(&key) {
                        Some(group) => group.clone(),
                        None => {
                            let group = bind_group(backend, number, *kernel, args, this.params.as_ref())?;
                            groups.insert(key, group.clone());
                            group
                        }
                    };
                    let dispatch = PreparedDispatch {
                        command: number,
                        kernel: *kernel,
                        pipeline: backend.kernels.get(*kernel)?.pipeline.clone(),
                        group,
                        offset: params.start,
                        step: *step,
                    };
                    match this.segments.last_mut() {
                        Some(Segment::Pass(pass)) => pass.push(dispatch),
                        _ => this.segments.push(Segment::Pass(vec![dispatch])),
                    }
                }
                Command::Copy { src, dst } => {
                    let call = format!("record command {number} (copy)");
                    let from = match &bounce {
                        Some(helper) if src.buffer == dst.buffer => {
                            Source::Itself(src.offset, helper.clone())
                        }
                        _ => Source::Buffer(backend.buffer(&call, src.buffer)?.clone(), src.offset),
                    };
                    this.transfer(backend, number, &call, *dst, from)?;
                }
                Command::Fill { dst, byte } => {
                    let call = format!("record command {number} (fill)");
                    let from = match (*byte, patterns.get(byte)) {
                        (0, _) => Source::Zero,
                        (_, Some(pattern)) => Source::Pattern(::wgpu::Buffer::clone(pattern)),
                        (value, None) => {
                            let longest = commands.iter().map(|c| match c {
                                Command::Fill { dst, byte } if *byte == value => dst.len,
                                _ => 0,
                            });
                            let bytes = longest.max().unwrap_or(0).clamp(4, CHUNK);
                            let usage = ::wgpu::BufferUsages::COPY_SRC;
                            let pattern = backend.allocate("fill pattern", bytes, usage, Some(value))?;
                            this.helpers.push(pattern.clone());
                            patterns.insert(value, pattern.clone());
                            Source::Pattern(pattern)
                        }
                    };
                    this.transfer(backend, number, &call, *dst, from)?;
                }
            }
        }
        Ok(this)
    }

    /// The helper buffer for copies within one buffer; `None` if there are none.
    fn bounce_buffer(
        &mut self,
        backend: &mut Wgpu,
        commands: &[Command],
    ) -> Result<Option<::wgpu::Buffer>, BackendError> {
        let longest = commands.iter().filter_map(|c| match c {
            Command::Copy { src, dst } if src.buffer == dst.buffer => Some(dst.len),
            _ => None,
        });
        let Some(bytes) = longest.max() else {
            return Ok(None);
        };
        let usage = ::wgpu::BufferUsages::COPY_SRC | ::wgpu::BufferUsages::COPY_DST;
        let helper = backend.allocate("copy helper", bytes.clamp(4, CHUNK), usage, None)?;
        self.helpers.push(helper.clone());
        Ok(Some(helper))
    }

    fn transfer(
        &mut self,
        backend: &Wgpu,
        command: usize,
        call: &str,
        dst: View,
        from: Source,
    ) -> Result<(), BackendError> {
        let target = backend.buffer(call, dst.buffer)?.clone();
        let transfer = Transfer {
            command,
            dst: target,
            offset: dst.offset,
            len: dst.len,
            from,
        };
        self.segments.push(Segment::Transfer(transfer));
        Ok(())
    }

    /// Bytes of the buffers that this recording owns.
    pub(super) fn bytes(&self) -> u64 {
        self.params
            .iter()
            .chain(&self.helpers)
            .map(::wgpu::Buffer::size)
            .sum()
    }

    /// Submits the commands with the values of `launch`, in parts, so that the device works on one
    /// part while the next is encoded.
    pub(super) fn submit(
        &self,
        device: &::wgpu::Device,
        queue: &::wgpu::Queue,
        launch: &Launch,
    ) -> Result<(), BackendError> {
        self.write_params(queue, launch)?;
        let new = || device.create_command_encoder(&::wgpu::CommandEncoderDescriptor::default());
        let (mut encoder, mut part) = (new(), FIRST_PART);
        let mut room = part;
        for segment in &self.segments {
            let mut left = match segment {
                Segment::Pass(dispatches) => dispatches.as_slice(),
                Segment::Transfer(transfer) => {
                    transfer.encode(&mut encoder);
                    continue;
                }
            };
            while !left.is_empty() {
                let (now, later) = left.split_at(left.len().min(room));
                encode_pass(&mut encoder, now, launch)?;
                (left, room) = (later, room - now.len());
                if room == 0 {
                    queue.submit(Some(std::mem::replace(&mut encoder, new()).finish()));
                    part *= 2;
                    room = part;
                }
            }
        }
        queue.submit(Some(encoder.finish()));
        Ok(())
    }

    fn write_params(&self, queue: &::wgpu::Queue, launch: &Launch) -> Result<(), BackendError> {
        let Some(buffer) = &self.params else { return Ok(()) };
        let used = launch.params.get(..self.params_used).ok_or_else(|| {
            let found = launch.params.len();
            driver(
                "submit",
                format!("expected {} bytes of parameters, found {found}", self.params_used),
            )
        })?;
        // One copy through wgpu's staging memory; a mapped buffer would first have to become free.
        queue.write_buffer(buffer, 0, used);
        Ok(())
    }
}

/// Encodes a compute pass with these dispatches.
fn encode_pass(
    encoder: &mut ::wgpu::CommandEncoder,
    dispatches: &[PreparedDispatch],
    launch: &Launch,
) -> Result<(), BackendError> {
    let mut pass = encoder.begin_compute_pass(&::wgpu::ComputePassDescriptor::default());
    let mut current = None;
    for dispatch in dispatches {
        let [x, y, z] = grid(launch, dispatch)?;
        if x == 0 || y == 0 || z == 0 {
            continue;
        }
        if current.replace(dispatch.kernel) != Some(dispatch.kernel) {
            pass.set_pipeline(&dispatch.pipeline);
        }
        pass.set_bind_group(0, &dispatch.group, &[dispatch.offset]);
        pass.dispatch_workgroups(x, y, z);
    }
    Ok(())
}

impl Transfer {
    fn encode(&self, encoder: &mut ::wgpu::CommandEncoder) {
        // Splits the range so that no part exceeds `size`.
        let parts = |size: u64| {
            let count = if size == 0 { 0 } else { self.len.div_ceil(size) };
            (0..count).map(move |i| (i * size, size.min(self.len - i * size)))
        };
        match &self.from {
            _ if self.len == 0 => {}
            Source::Zero => encoder.clear_buffer(&self.dst, self.offset, Some(self.len)),
            Source::Pattern(pattern) => {
                for (at, len) in parts(pattern.size()) {
                    encoder.copy_buffer_to_buffer(pattern, 0, &self.dst, self.offset + at, Some(len));
                }
            }
            Source::Buffer(src, start) => {
                encoder.copy_buffer_to_buffer(src, *start, &self.dst, self.offset, Some(self.len));
            }
            Source::Itself(start, helper) => {
                for (at, len) in parts(helper.size()) {
                    encoder.copy_buffer_to_buffer(&self.dst, start + at, helper, 0, Some(len));
                    encoder.copy_buffer_to_buffer(helper, 0, &self.dst, self.offset + at, Some(len));
                }
            }
        }
    }
}

fn grid(launch: &Launch, dispatch: &PreparedDispatch) -> Result<[u32; 3], BackendError> {
    launch.grids.get(dispatch.step as usize).copied().ok_or_else(|| {
        let (command, step, found) = (dispatch.command, dispatch.step, launch.grids.len());
        let why = format!("command {command} needs grid {step}, but the launch has only {found} grids");
        driver("submit", why)
    })
}

/// The uniform buffer for all dispatches, and the number of bytes of the launch's parameters that
/// they use.
fn params_buffer(
    backend: &mut Wgpu,
    commands: &[Command],
) -> Result<(Option<::wgpu::Buffer>, usize), BackendError> {
    let (mut used, mut size) = (0, 0);
    for (number, command) in commands.iter().enumerate() {
        let Command::Dispatch { kernel, params, .. } = command else {
            continue;
        };
        let call = format!("record command {number}");
        let kernel = backend.kernels.get(*kernel)?;
        if params.end.checked_sub(params.start) != Some(kernel.params_exact) || params.end % 4 != 0 {
            let expected = kernel.params_exact;
            return Err(driver(
                format!("{call} ({})", kernel.name),
                format!(
                    "expected a multiple of 4 and {expected} bytes of parameters, found bytes {params:?}"
                ),
            ));
        }
        used = used.max(params.end);
        size = size.max(u64::from(params.start) + kernel.params);
    }
    if size == 0 {
        return Ok((None, 0));
    }
    let usage = ::wgpu::BufferUsages::UNIFORM | ::wgpu::BufferUsages::COPY_DST;
    let buffer = backend.allocate("parameters", size.next_multiple_of(16), usage, None)?;
    Ok((Some(buffer), used as usize))
}

fn bind_group(
    backend: &Wgpu,
    number: usize,
    id: KernelId,
    args: &[View],
    params: Option<&::wgpu::Buffer>,
) -> Result<::wgpu::BindGroup, BackendError> {
    let kernel = backend.kernels.get(id)?;
    let call = || format!("record command {number} ({})", kernel.name);
    if args.len() != kernel.operands {
        return Err(driver(
            call(),
            format!("expected {} operands, found {}", kernel.operands, args.len()),
        ));
    }
    let binding = |buffer, offset, size| {
        ::wgpu::BindingResource::Buffer(::wgpu::BufferBinding {
            buffer,
            offset,
            size: NonZeroU64::new(size),
        })
    };
    let params = params.ok_or_else(|| driver(call(), "no parameter buffer"))?;
    let mut resources = vec![binding(params, 0, kernel.params)];
    for view in args {
        let buffer = backend.buffer(&call(), view.buffer)?;
        // Without a size, wgpu binds the rest of the buffer.
        if view.len == 0 {
            return Err(driver(call(), format!("empty view of buffer {}", view.buffer.0)));
        }
        resources.push(binding(buffer, view.offset, view.len));
    }
    let entries: Vec<_> = (0..)
        .zip(resources)
        .map(|(binding, resource)| ::wgpu::BindGroupEntry { binding, resource })
        .collect();
    let descriptor = ::wgpu::BindGroupDescriptor {
        label: Some(&kernel.name),
        layout: &kernel.layout,
        entries: &entries,
    };
    backend
        .scoped(|device| device.create_bind_group(&descriptor))
        .map_err(|e| driver(call(), words(&e)))
}

/// Runs a recording with a timestamp before and after each command.
pub(super) fn profile(
    backend: &mut Wgpu,
    id: RecordingId,
    launch: &Launch,
) -> Result<Vec<u64>, BackendError> {
    if !backend.caps.profiling {
        return Err(driver(
            "profile",
            format!("{} has no timestamp queries", backend.caps.device),
        ));
    }
    let missing = || driver("profile", format!("recording {} does not exist", id.0));
    let commands = backend.recordings.get(&id.0).ok_or_else(missing)?.commands;
    make_timers(backend, commands)?;
    let recording = backend.recordings.get(&id.0).ok_or_else(missing)?;
    let timers = backend
        .timers
        .as_ref()
        .ok_or_else(|| driver("profile", "no timestamp queries"))?;

    recording.write_params(&backend.queue, launch)?;
    let mut encoder = backend
        .device
        .create_command_encoder(&::wgpu::CommandEncoderDescriptor::default());
    let ran = timers.encode(&mut encoder, recording, launch)?;
    let resolved = timers.resolved.clone();
    let done = encoder.finish();
    backend.queue_submit(Some(done));
    backend.stats.submits += 1;
    backend.check("profile")?;

    let mut times = vec![0; commands];
    let mut bytes = vec![0u8; 16 * ran.len()];
    if bytes.is_empty() {
        return Ok(times);
    }
    backend.download(&resolved, 0, &mut bytes)?;
    let period = f64::from(backend.queue.get_timestamp_period());
    let (ticks, _) = bytes.as_chunks::<8>();
    for (command, pair) in ran.into_iter().zip(ticks.chunks_exact(2)) {
        let [begin, end] = [pair[0], pair[1]].map(u64::from_le_bytes);
        if let Some(time) = times.get_mut(command) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a time of at least 0, far below 2^63 ns"
            )]
            let nanoseconds = (end.saturating_sub(begin) as f64 * period) as u64;
            *time = nanoseconds;
        }
    }
    Ok(times)
}

impl Timers {
    /// Encodes a recording with a timestamp before and after each command, and returns the commands
    /// that run.
    fn encode(
        &self,
        encoder: &mut ::wgpu::CommandEncoder,
        recording: &Recording,
        launch: &Launch,
    ) -> Result<Vec<usize>, BackendError> {
        // Commands that ran, in order. Queries are numbered without gaps, since only written ones
        // may be resolved.
        let mut ran = Vec::new();
        for segment in &recording.segments {
            match segment {
                Segment::Pass(dispatches) => {
                    for dispatch in dispatches {
                        let [x, y, z] = grid(launch, dispatch)?;
                        if x == 0 || y == 0 || z == 0 {
                            continue;
                        }
                        let mut pass = self.pass(encoder, ran.len(), true, true)?;
                        pass.set_pipeline(&dispatch.pipeline);
                        pass.set_bind_group(0, &dispatch.group, &[dispatch.offset]);
                        pass.dispatch_workgroups(x, y, z);
                        ran.push(dispatch.command);
                    }
                }
                Segment::Transfer(transfer) => {
                    // Core WebGPU has timestamps only at the ends of passes, so a copy stands
                    // between empty passes.
                    drop(self.pass(encoder, ran.len(), true, false)?);
                    transfer.encode(encoder);
                    drop(self.pass(encoder, ran.len(), false, true)?);
                    ran.push(transfer.command);
                }
            }
        }
        for (set, first) in self.sets.iter().zip((0..ran.len()).step_by(TIMES_PER_SET)) {
            let times = (ran.len() - first).min(TIMES_PER_SET);
            let count = num::exact(2 * times, "the number of timestamps")?;
            encoder.resolve_query_set(set, 0..count, &self.resolved, num::wide(first) * 16);
        }
        Ok(ran)
    }

    fn pass<'e>(
        &self,
        encoder: &'e mut ::wgpu::CommandEncoder,
        time: usize,
        begin: bool,
        end: bool,
    ) -> Result<::wgpu::ComputePass<'e>, BackendError> {
        let set = self.sets.get(time / TIMES_PER_SET);
        let query_set = set.ok_or_else(|| driver("profile", "too few timestamp queries"))?;
        let first = num::exact(2 * (time % TIMES_PER_SET), "the index of a timestamp")?;
        Ok(encoder.begin_compute_pass(&::wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes: Some(::wgpu::ComputePassTimestampWrites {
                query_set,
                beginning_of_pass_write_index: begin.then_some(first),
                end_of_pass_write_index: end.then_some(first + 1),
            }),
        }))
    }
}

fn make_timers(backend: &mut Wgpu, commands: usize) -> Result<(), BackendError> {
    if backend.timers.as_ref().is_some_and(|t| t.capacity >= commands) {
        return Ok(());
    }
    if let Some(old) = backend.timers.take() {
        backend.forget(&old.resolved);
    }
    let sets = commands.div_ceil(TIMES_PER_SET).max(1);
    let usage = ::wgpu::BufferUsages::QUERY_RESOLVE | ::wgpu::BufferUsages::COPY_SRC;
    let resolved = backend.allocate("timestamps", num::wide(sets * TIMES_PER_SET * 16), usage, None)?;
    let sets = backend
        .scoped(|device| {
            let descriptor = ::wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: ::wgpu::QueryType::Timestamp,
                count: ::wgpu::QUERY_SET_MAX_QUERIES,
            };
            (0..sets)
                .map(|_| device.create_query_set(&descriptor))
                .collect::<Vec<_>>()
        })
        .map_err(|e| driver("create timestamp queries", words(&e)))?;
    let capacity = sets.len() * TIMES_PER_SET;
    backend.timers = Some(Timers {
        sets,
        resolved,
        capacity,
    });
    Ok(())
}
