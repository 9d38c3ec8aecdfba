//! Recordings: lists of commands, and what the driver has recorded of them (replay).
//!
//! A recording is first queued command by command. When it is submitted again, the driver records
//! its dispatches, and from then on they are queued as a whole. Values that have changed are
//! patched if the driver supports that. Otherwise the driver's recording is dropped, and created
//! again after two submissions in a row with the same values.

use super::driver::command_buffer::{self, CommandBuffer, CommandBuffers, MutableCommand};
use super::driver::recordable::{self, QueueRecording, RecordableQueue};
use super::driver::{Code, Context, DeviceHandle, Event, Queue};
use super::record::{DriverTime, Job, Step};
use super::slice::Slices;
use crate::backend::{BackendError, Caps, DeviceKind, Launch, ReplayMode};
use crate::num;
use std::ops::Range;
use std::sync::Arc;

/// The replay mechanism of a device.
#[derive(Debug)]
pub(super) enum Recorder {
    /// None: commands are queued one by one.
    Off,
    CommandBuffers(Arc<CommandBuffers>),
    Qcom(Arc<RecordableQueue>),
}

impl Recorder {
    /// Opens the mechanism asked for. Fails if the device does not support it.
    pub(super) fn open(
        asked: ReplayMode,
        context: &Context,
        device: DeviceHandle,
        caps: &Caps,
    ) -> Result<Self, BackendError> {
        let qcom = || RecordableQueue::of(context, device).map(|found| found.map(Self::Qcom));
        let buffers = || CommandBuffers::of(device).map(|found| found.map(Self::CommandBuffers));
        let need = |extension: &str, found: Result<Option<Self>, String>| {
            let why = match found {
                Ok(Some(recorder)) => return Ok(recorder),
                Ok(None) => format!("{} does not list {extension}", caps.device),
                Err(why) => format!("{}: {extension}: {why}", caps.device),
            };
            Err(BackendError::NotOffered {
                field: "recording",
                why: format!("{asked}: {why}"),
            })
        };
        match asked {
            ReplayMode::Off => Ok(Self::Off),
            ReplayMode::Qcom => need("cl_qcom_recordable_queues", qcom()),
            ReplayMode::CommandBuffer => need("cl_khr_command_buffer", buffers()),
            // CPU drivers replay each command like a new one and gain nothing from recording.
            ReplayMode::Auto if caps.kind == DeviceKind::Cpu => Ok(Self::Off),
            ReplayMode::Auto => {
                for found in [qcom(), buffers()] {
                    match found {
                        Ok(Some(recorder)) => return Ok(recorder),
                        Ok(None) => {}
                        Err(why) => log::warn!("{}: commands are not recorded: {why}", caps.device),
                    }
                }
                Ok(Self::Off)
            }
        }
    }

    /// The mechanism in use.
    pub(super) fn way(&self) -> ReplayMode {
        match self {
            Self::Off => ReplayMode::Off,
            Self::CommandBuffers(_) => ReplayMode::CommandBuffer,
            Self::Qcom(_) => ReplayMode::Qcom,
        }
    }

    /// Stops recording and logs the reason.
    fn give_up(&mut self, call: &str, code: Code) {
        log::warn!("opencl: commands are queued one by one from now on: {call}: {code}");
        *self = Self::Off;
    }

    /// Whether recorded values can be changed.
    fn patches(&self) -> bool {
        match self {
            Self::Off => false,
            Self::CommandBuffers(api) => api.are_mutable(),
            Self::Qcom(_) => true,
        }
    }

    /// Whether a recording can be queued while it runs.
    fn runs_again(&self) -> bool {
        match self {
            Self::Off | Self::Qcom(_) => true,
            Self::CommandBuffers(api) => api.run_again(),
        }
    }
}

/// A recorded dispatch with its current values.
#[derive(Debug)]
struct Entry {
    job: Job,
    command: Option<MutableCommand>,
    params: Vec<u8>,
    grid: [u32; 3],
    /// The values differ from the recorded ones.
    differs: bool,
}

#[derive(Debug)]
enum Made {
    /// Not recorded: the commands are not dispatches.
    Plain,
    CommandBuffer(CommandBuffer),
    Qcom(QueueRecording),
}

/// Jobs that are queued in one call.
#[derive(Debug)]
struct Piece {
    jobs: Range<usize>,
    made: Made,
    entries: Vec<Entry>,
}

/// What a submission needs from the device.
pub(super) struct Target<'a> {
    pub(super) queue: &'a Queue,
    pub(super) recorder: &'a mut Recorder,
    pub(super) time: &'a mut DriverTime,
    /// Changes whenever all queued work is known to be done.
    pub(super) epoch: u64,
}

/// The first and last event of some jobs, and whether the driver replayed all dispatches among
/// them.
#[derive(Debug, Default)]
pub(super) struct Queued {
    pub(super) first: Option<Event>,
    pub(super) last: Option<Event>,
    pub(super) replayed: bool,
}

impl Queued {
    fn add(&mut self, event: Option<Event>) {
        match event {
            Some(event) if self.first.is_none() => self.first = Some(event),
            Some(event) => self.last = Some(event),
            None => {}
        }
    }
}

/// A list of commands.
#[derive(Debug)]
pub(super) struct Recording {
    // Fields are dropped in this order: the driver's recordings before their kernel objects.
    pieces: Vec<Piece>,
    /// Earlier pieces that may still run.
    retired: Vec<Piece>,
    pub(super) steps: Vec<Step>,
    /// How its work is cut into slices.
    pub(super) cut: Slices,
    /// The values of the last submission, which the pieces hold.
    last: Option<Launch>,
    /// The epoch in which it was last queued.
    epoch: Option<u64>,
    /// This submission may use the driver's recordings.
    replays: bool,
}

impl Recording {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        Self {
            cut: Slices::whole(steps.len()),
            steps,
            pieces: Vec::new(),
            retired: Vec::new(),
            last: None,
            epoch: None,
            replays: false,
        }
    }

    /// Number of launches in a submission.
    pub(super) fn launches(&self) -> usize {
        self.cut.jobs.len()
    }

    /// Whether it was queued since `epoch` began and so may still run.
    pub(super) fn may_run(&self, epoch: u64) -> bool {
        self.epoch == Some(epoch)
    }

    /// Drops the driver's recordings.
    pub(super) fn forget(&mut self) {
        self.retired.append(&mut self.pieces);
        self.last = None;
    }

    /// Decides how this submission is queued, and records or patches for it.
    pub(super) fn prepare(&mut self, launch: &Launch, to: &mut Target<'_>) -> Result<(), BackendError> {
        let running = self.may_run(to.epoch);
        if !running {
            self.retired.clear();
        }
        self.epoch = Some(to.epoch);
        self.replays = to.recorder.runs_again() || !running;
        if matches!(to.recorder, Recorder::Off) {
            self.forget();
            return Ok(());
        }
        let same = self.last.as_ref() == Some(launch);
        if !same && !self.pieces.is_empty() {
            // If this fails, some pieces have the new values and others do not.
            let patched = match to.recorder.patches() {
                true => self.patch(launch, running, to).inspect_err(|_| self.forget())?,
                false => false,
            };
            if !patched {
                self.retired.append(&mut self.pieces);
            }
        }
        // Running work keeps its values; the next submission that finds nothing running is
        // recorded.
        let again = same || (self.last.is_some() && to.recorder.patches() && !running);
        match &mut self.last {
            Some(last) if !same => last.clone_from(launch),
            Some(_) => {}
            none => *none = Some(launch.clone()),
        }
        if again && self.pieces.is_empty() {
            self.build(launch, to)?;
        }
        Ok(())
    }

    fn build(&mut self, launch: &Launch, to: &mut Target<'_>) -> Result<(), BackendError> {
        let most = match &*to.recorder {
            Recorder::Qcom(api) => api.most(),
            _ => usize::MAX,
        };
        for slice in self.cut.slices() {
            let mut at = slice.start;
            while at < slice.end {
                let is_dispatch = |j: usize| matches!(self.steps[self.cut.jobs[j].step], Step::Dispatch(_));
                let kind = is_dispatch(at);
                let rest = (at + 1..slice.end).take_while(|j| is_dispatch(*j) == kind);
                let jobs = at..at + 1 + rest.count().min(most - 1);
                at = jobs.end;
                match self.piece(jobs, kind, launch, to)? {
                    Ok(piece) => self.pieces.push(piece),
                    Err((call, code)) => {
                        to.recorder.give_up(call, code);
                        self.forget();
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Records some jobs; the error is the driver's code with the call that failed.
    fn piece(
        &mut self,
        jobs: Range<usize>,
        dispatches: bool,
        launch: &Launch,
        to: &mut Target<'_>,
    ) -> Result<Result<Piece, (&'static str, Code)>, BackendError> {
        let mut entries = Vec::with_capacity(jobs.len());
        let mut failure = None;
        let (steps, cut) = (&mut self.steps, &self.cut.jobs);
        // Not every driver accepts an empty recording.
        let all = num::part(cut, jobs.clone())?;
        let runs = all.iter().any(|job| steps[job.step].groups(launch) > 0);
        // Passes every dispatch that runs to `record`.
        let mut each =
            |record: &mut dyn FnMut(&super::record::Ready<'_>) -> Result<Option<MutableCommand>, Code>| {
                for job in all {
                    let Step::Dispatch(d) = &mut steps[job.step] else {
                        continue;
                    };
                    let (params, grid) = match (d.values(launch), d.grid(launch)) {
                        (Ok(params), Ok(grid)) => (params.to_vec(), grid),
                        (Err(e), _) | (_, Err(e)) => {
                            failure = Some(e);
                            return Ok(());
                        }
                    };
                    let command = match d.ready(launch, job.part, &mut DriverTime::default()) {
                        Ok(Some(ready)) => record(&ready)?,
                        Ok(None) => None,
                        Err(e) => {
                            failure = Some(e);
                            return Ok(());
                        }
                    };
                    entries.push(Entry {
                        job: *job,
                        command,
                        params,
                        grid,
                        differs: false,
                    });
                }
                Ok(())
            };
        let made = match (&*to.recorder, dispatches) {
            (_, true) if !runs => each(&mut |_| Ok(None))
                .map(|()| Made::Plain)
                .map_err(|code| ("clSetKernelArg", code)),
            (Recorder::CommandBuffers(api), true) => to.time.of(|| {
                let mut buffer =
                    CommandBuffer::new(api, to.queue).map_err(|code| ("clCreateCommandBufferKHR", code))?;
                each(&mut |r| buffer.dispatch(r.kernel, r.offset, r.global, r.local))
                    .map_err(|code| ("clCommandNDRangeKernelKHR", code))?;
                buffer
                    .finalize()
                    .map_err(|code| ("clFinalizeCommandBufferKHR", code))?;
                Ok(Made::CommandBuffer(buffer))
            }),
            (Recorder::Qcom(api), true) => to.time.of(|| {
                QueueRecording::new(api, |queue| {
                    each(&mut |r| {
                        queue
                            .dispatch(r.kernel, r.offset, r.global, r.local, false)
                            .map(|_| None)
                    })
                })
                .map(Made::Qcom)
            }),
            (Recorder::Off, _) | (_, false) => Ok(Made::Plain),
        };
        match failure {
            Some(error) => Err(error),
            None => Ok(made.map(|made| Piece { jobs, made, entries })),
        }
    }

    /// Sets the values of `launch` in the pieces. `false` if that requires new pieces.
    fn patch(&mut self, launch: &Launch, running: bool, to: &mut Target<'_>) -> Result<bool, BackendError> {
        for piece in &mut self.pieces {
            let mut changed = Vec::new();
            for (i, entry) in piece.entries.iter_mut().enumerate() {
                let Step::Dispatch(d) = &self.steps[entry.job.step] else {
                    continue;
                };
                let (params, grid) = (d.values(launch)?, d.grid(launch)?);
                if entry.params == params && entry.grid == grid {
                    continue;
                }
                // An empty dispatch is not recorded, and a part of a dispatch belongs to one grid.
                if grid.contains(&0) != entry.grid.contains(&0)
                    || (entry.job.part.is_some() && entry.grid != grid)
                {
                    return Ok(false);
                }
                entry.params.clear();
                entry.params.extend_from_slice(params);
                (entry.grid, entry.differs) = (grid, true);
                if !grid.contains(&0) {
                    changed.push(i);
                }
            }
            let Made::CommandBuffer(buffer) = &mut piece.made else {
                continue;
            };
            if changed.is_empty() {
                continue;
            }
            if running {
                return Ok(false);
            }
            let mut changes = Vec::with_capacity(changed.len());
            for entry in changed.iter().filter_map(|i| piece.entries.get(*i)) {
                let Step::Dispatch(d) = &self.steps[entry.job.step] else {
                    continue;
                };
                let Some(command) = entry.command else {
                    return Ok(false);
                };
                changes.push(command_buffer::Change {
                    command,
                    param: (d.params_index, &entry.params),
                    global: d.global(grid_of(entry))?,
                });
            }
            if let Err(code) = to.time.of(|| buffer.update(&changes)) {
                to.recorder.give_up("clUpdateMutableCommandsKHR", code);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Queues everything. `true` if the driver replayed all dispatches.
    pub(super) fn submit(&mut self, launch: &Launch, to: &mut Target<'_>) -> Result<bool, BackendError> {
        self.prepare(launch, to)?;
        let all = 0..self.cut.jobs.len();
        Ok(self.enqueue(&all, launch, false, to)?.replayed)
    }

    /// Queues the jobs of one slice. Creates events only if `timed`.
    pub(super) fn enqueue(
        &mut self,
        slice: &Range<usize>,
        launch: &Launch,
        timed: bool,
        to: &mut Target<'_>,
    ) -> Result<Queued, BackendError> {
        let mut queued = Queued {
            replayed: !self.pieces.is_empty() && self.replays,
            ..Queued::default()
        };
        let mut at = slice.start;
        if queued.replayed {
            let mut failure = None;
            for piece in &self.pieces {
                if !slice.contains(&piece.jobs.start) {
                    continue;
                }
                match piece.enqueue(&mut self.steps, &self.cut.jobs, launch, timed, to)? {
                    Ok(event) => queued.add(event),
                    Err((_, code)) if code.is_lost() => {
                        return Err(code.at("queueing a recording"));
                    }
                    Err(refusal) => {
                        failure = Some(refusal);
                        break;
                    }
                }
                at = piece.jobs.end;
            }
            if let Some((call, code)) = failure {
                to.recorder.give_up(call, code);
                self.forget();
                queued.replayed = false;
            }
        }
        let jobs = num::part(&self.cut.jobs, at..slice.end)?;
        let runs = |job: &Job| self.steps[job.step].groups(launch) > 0;
        let (first, last) = (jobs.iter().position(runs), jobs.iter().rposition(runs));
        for (i, job) in jobs.iter().enumerate() {
            let timed = timed && (Some(i) == first || Some(i) == last);
            queued.add(self.steps[job.step].enqueue(to.queue, launch, job.part, timed, to.time)?);
        }
        Ok(queued)
    }
}

/// The grid of what an entry runs.
fn grid_of(entry: &Entry) -> [u32; 3] {
    let mut grid = entry.grid;
    if let Some(part) = entry.job.part
        && let Some(count) = grid.get_mut(part.axis)
    {
        *count = part.count;
    }
    grid
}

impl Piece {
    /// Queues it; the error is the driver's code with the call that failed.
    fn enqueue(
        &self,
        steps: &mut [Step],
        jobs: &[Job],
        launch: &Launch,
        timed: bool,
        to: &mut Target<'_>,
    ) -> Result<Result<Option<Event>, (&'static str, Code)>, BackendError> {
        Ok(match &self.made {
            Made::Plain => {
                let mut last = None;
                for job in num::part(jobs, self.jobs.clone())? {
                    let event = steps[job.step].enqueue(to.queue, launch, job.part, timed, to.time)?;
                    last = event.or(last);
                }
                Ok(last)
            }
            Made::CommandBuffer(buffer) => to
                .time
                .of(|| buffer.enqueue(timed))
                .map_err(|code| ("clEnqueueCommandBufferKHR", code)),
            Made::Qcom(recording) => {
                let mut changes = Vec::new();
                let recorded = self.entries.iter().filter(|e| !e.grid.contains(&0));
                for (dispatch, entry) in (0u32..).zip(recorded).filter(|(_, e)| e.differs) {
                    if let Step::Dispatch(d) = &steps[entry.job.step] {
                        changes.push(recordable::Change {
                            dispatch,
                            param: (d.params_index, &entry.params),
                            global: d.global(grid_of(entry))?,
                        });
                    }
                }
                to.time
                    .of(|| recording.enqueue(to.queue, &changes, timed))
                    .map_err(|code| ("clEnqueueRecordingQCOM", code))
            }
        })
    }
}
