//! Recordings: lists of commands, and what the driver has recorded of them (replay).
//!
//! A recording is first queued command by command. When it is submitted again, the driver records
//! its dispatches, and from then on they are queued as a whole. Values that have changed are
//! patched if the driver supports that. Otherwise the driver's recording is dropped, and created
//! again after two submissions in a row with the same values.

use super::driver::command_buffer::{CommandBuffer, CommandBuffers};
use super::driver::recordable::{QueueRecording, RecordableQueue};
use super::driver::{Change, Context, DeviceHandle, Event, Queue, Ready, Refusal};
use super::record::{DriverTime, Step};
use super::slice::{Slicer, Slices};
use crate::backend::{BackendError, Caps, DeviceKind, Launch, RecordingId, ReplayMode};
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
                Ok(None) => "which it does not list".to_owned(),
                Err(why) => why,
            };
            Err(BackendError::NotOffered {
                field: "recording",
                why: format!("{asked} on {} requires {extension}, {why}", caps.device),
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
    fn give_up(&mut self, (call, code): Refusal) {
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

/// A dispatch of a piece with its current values.
#[derive(Debug)]
struct Entry {
    step: usize,
    params: Vec<u8>,
    grid: [u32; 3],
    /// The values differ from the recorded ones.
    differs: bool,
}

#[derive(Debug)]
enum Made {
    /// Not recorded: the steps are not dispatches, or run nothing.
    Plain,
    CommandBuffer(CommandBuffer),
    Qcom(QueueRecording),
}

/// Steps that are queued in one call.
#[derive(Debug)]
struct Piece {
    steps: Range<usize>,
    made: Made,
    entries: Vec<Entry>,
}

/// What a submission needs from the device.
pub(super) struct Target<'a> {
    pub(super) queue: &'a Queue,
    pub(super) recorder: &'a mut Recorder,
    pub(super) slicer: Option<&'a mut Slicer>,
    pub(super) time: &'a mut DriverTime,
    /// Changes whenever all queued work is known to be done.
    pub(super) epoch: u64,
}

/// The first and last event of some steps, and whether the driver replayed all dispatches among
/// them.
#[derive(Debug, Default)]
pub(super) struct Queued {
    pub(super) first: Option<Event>,
    pub(super) last: Option<Event>,
    replayed: bool,
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
    fn prepare(&mut self, launch: &Launch, to: &mut Target<'_>) -> Result<(), BackendError> {
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
        for slice in &self.cut.all {
            let Range { start: mut at, end } = slice.steps;
            while at < end {
                let is_dispatch = |step: &Step| matches!(step, Step::Dispatch(_));
                let kind = is_dispatch(&self.steps[at]);
                let rest = num::part(&self.steps, at + 1..end)?.iter();
                let rest = rest.take_while(|step| is_dispatch(step) == kind).count();
                let steps = at..at + 1 + rest.min(most - 1);
                at = steps.end;
                match Piece::new(steps, &mut self.steps, launch, to)? {
                    Ok(piece) => self.pieces.push(piece),
                    Err(refusal) => {
                        to.recorder.give_up(refusal);
                        self.forget();
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets the values of `launch` in the pieces. `false` if that requires new pieces.
    fn patch(&mut self, launch: &Launch, running: bool, to: &mut Target<'_>) -> Result<bool, BackendError> {
        for piece in &mut self.pieces {
            for entry in &mut piece.entries {
                let Step::Dispatch(d) = &self.steps[entry.step] else {
                    continue;
                };
                let (params, grid) = (d.values(launch)?, d.grid(launch)?);
                if entry.params == params && entry.grid == grid {
                    continue;
                }
                // An empty dispatch is not recorded.
                if grid.contains(&0) != entry.grid.contains(&0) {
                    return Ok(false);
                }
                entry.params.clear();
                entry.params.extend_from_slice(params);
                (entry.grid, entry.differs) = (grid, true);
            }
            let Made::CommandBuffer(buffer) = &mut piece.made else {
                continue;
            };
            let changes = changes(&piece.entries, &self.steps)?;
            if changes.is_empty() {
                continue;
            }
            if running {
                return Ok(false);
            }
            if let Err(code) = to.time.of(|| buffer.update(&changes)) {
                to.recorder.give_up(("clUpdateMutableCommandsKHR", code));
                return Ok(false);
            }
            for entry in &mut piece.entries {
                entry.differs = false;
            }
        }
        Ok(true)
    }

    /// Queues everything; slices each after the one before the last is done. `true` if the driver
    /// replayed all dispatches.
    pub(super) fn submit(
        &mut self,
        id: RecordingId,
        launch: &Launch,
        to: &mut Target<'_>,
    ) -> Result<bool, BackendError> {
        if let Some(slicer) = &mut to.slicer
            && self.cut.follow(id, slicer, &self.steps, launch)
        {
            self.forget();
        }
        self.prepare(launch, to)?;
        let mut replayed = true;
        for slice in 0..self.cut.all.len() {
            let steps = self.cut.all[slice].steps.clone();
            if let Some(slicer) = &mut to.slicer {
                to.time.of(|| slicer.drain(1, to.queue))?;
            }
            let queued = self.enqueue(steps, launch, to)?;
            replayed &= queued.replayed;
            to.time
                .of(|| to.queue.flush())
                .map_err(|code| code.while_waiting("clFlush"))?;
            if let Some(slicer) = &mut to.slicer {
                slicer.push(id, &self.cut, slice, queued);
            }
        }
        Ok(replayed)
    }

    /// Queues some steps. Creates events only for slices.
    fn enqueue(
        &mut self,
        slice: Range<usize>,
        launch: &Launch,
        to: &mut Target<'_>,
    ) -> Result<Queued, BackendError> {
        let mut queued = Queued {
            replayed: !self.pieces.is_empty() && self.replays,
            ..Queued::default()
        };
        let mut at = slice.start;
        if queued.replayed {
            let mut failure = None;
            for piece in self.pieces.iter().filter(|p| slice.contains(&p.steps.start)) {
                match piece.enqueue(&mut self.steps, launch, to)? {
                    Ok(event) => queued.add(event),
                    Err((_, code)) if code.is_lost() => {
                        return Err(code.at("queueing a recording"));
                    }
                    Err(refusal) => {
                        failure = Some(refusal);
                        break;
                    }
                }
                at = piece.steps.end;
            }
            if let Some(refusal) = failure {
                to.recorder.give_up(refusal);
                self.forget();
                queued.replayed = false;
            }
        }
        let steps = num::part_mut(&mut self.steps, at..slice.end)?;
        let runs = |step: &Step| step.groups(launch) > 0;
        let (first, last) = (steps.iter().position(runs), steps.iter().rposition(runs));
        for (i, step) in steps.iter_mut().enumerate() {
            let timed = to.slicer.is_some() && (Some(i) == first || Some(i) == last);
            queued.add(step.enqueue(to.queue, launch, timed, to.time)?);
        }
        Ok(queued)
    }
}

/// The new values of the recorded dispatches that differ.
fn changes<'a>(entries: &'a [Entry], steps: &[Step]) -> Result<Vec<Change<'a>>, BackendError> {
    let recorded = entries.iter().filter(|e| !e.grid.contains(&0));
    let mut changes = Vec::new();
    for (dispatch, entry) in (0..).zip(recorded).filter(|(_, e)| e.differs) {
        if let Step::Dispatch(d) = &steps[entry.step] {
            changes.push(Change {
                dispatch,
                param: (d.params_index, &entry.params),
                global: d.global(entry.grid)?,
            });
        }
    }
    Ok(changes)
}

impl Piece {
    /// Records steps that are all dispatches, or none of them; the inner error is the driver's.
    fn new(
        range: Range<usize>,
        steps: &mut [Step],
        launch: &Launch,
        to: &mut Target<'_>,
    ) -> Result<Result<Self, Refusal>, BackendError> {
        let mut entries = Vec::with_capacity(range.len());
        let mut ready: Vec<Ready<'_>> = Vec::with_capacity(range.len());
        for (step, command) in range.clone().zip(num::part_mut(steps, range.clone())?) {
            if let Step::Dispatch(d) = command {
                entries.push(Entry {
                    step,
                    params: d.values(launch)?.to_vec(),
                    grid: d.grid(launch)?,
                    differs: false,
                });
                ready.extend(d.ready(launch, to.time)?);
            }
        }
        // Not every driver accepts an empty recording.
        let made = match &*to.recorder {
            Recorder::CommandBuffers(api) if !ready.is_empty() => to
                .time
                .of(|| CommandBuffer::new(api, to.queue, &ready))
                .map(Made::CommandBuffer),
            Recorder::Qcom(api) if !ready.is_empty() => {
                to.time.of(|| QueueRecording::new(api, &ready)).map(Made::Qcom)
            }
            _ => Ok(Made::Plain),
        };
        Ok(made.map(|made| Self {
            steps: range,
            made,
            entries,
        }))
    }

    /// Queues it; the inner error is the driver's.
    fn enqueue(
        &self,
        steps: &mut [Step],
        launch: &Launch,
        to: &mut Target<'_>,
    ) -> Result<Result<Option<Event>, Refusal>, BackendError> {
        let timed = to.slicer.is_some();
        Ok(match &self.made {
            Made::Plain => {
                let mut last = None;
                for step in num::part_mut(steps, self.steps.clone())? {
                    let event = step.enqueue(to.queue, launch, timed, to.time)?;
                    last = event.or(last);
                }
                Ok(last)
            }
            Made::CommandBuffer(buffer) => to
                .time
                .of(|| buffer.enqueue(timed))
                .map_err(|code| ("clEnqueueCommandBufferKHR", code)),
            Made::Qcom(recording) => {
                let changes = changes(&self.entries, steps)?;
                to.time
                    .of(|| recording.enqueue(to.queue, &changes, timed))
                    .map_err(|code| ("clEnqueueRecordingQCOM", code))
            }
        })
    }
}
