//! First runs of recordings: measures the time of each command without running anything that is
//! predicted to exceed a slice.
//!
//! For a kernel that has not been measured with these parameters, the first work-groups along an
//! axis run before the others as a pilot: a small share, then larger ones as long as the last one
//! has shown that the next fits a slice. Their times predict the whole, rather too high than too
//! low, because few work-groups do not fill a device. A kernel that does not query the number of
//! work-groups along an axis does not notice the smaller grid; for one that reads what it writes,
//! memory is restored. A dispatch that does not fit runs in parts, whose results are compared with
//! those of as many work-groups of the whole as fit a slice.

use super::driver::{Code, Event, Mem};
use super::record::{Block, GroupRange, PreparedDispatch, Step};
use super::replay::Recording;
use super::slice::{PARTS, Slicer};
use super::{OpenCl, size};
use crate::backend::{BackendError, Launch, nanoseconds_since};
use std::sync::Arc;
use std::time::Instant;

/// The first pilot runs one work-group in this many.
const PILOT: u32 = 64;
/// Growth factor from one pilot to the next.
const GROWTH: u32 = 4;
/// Bytes saved at a time, far less than a slice on any device.
const PIECE: usize = 4 << 20;

/// A byte pattern that is unlikely in results.
const PATTERN: u8 = 0xA5;

/// The memory that a dispatch writes, as it was before.
pub(super) struct Saved {
    blocks: Vec<(Arc<Block>, Mem, usize)>,
}

/// A dispatch that has been measured.
struct Measured {
    axis: usize,
    /// Number of work-groups along the axis.
    count: u32,
    /// Nanoseconds of all work-groups with one index on the axis.
    each: f64,
}

impl Measured {
    fn predicts(&self, count: u32) -> f64 {
        self.each * f64::from(count)
    }

    /// How many of them fit a slice, but at least `least`.
    fn fitting(&self, fill: f64, least: u32) -> u32 {
        let fits = (fill / self.each.max(1e-3)).clamp(1.0, f64::from(self.count));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped above"
        )]
        let fits = fits as u32;
        fits.max(least).min(self.count)
    }
}

impl OpenCl {
    /// Runs a recording command by command, none that is predicted to exceed a slice, and records
    /// the time of each.
    pub(super) fn measure(
        &mut self,
        recording: &mut Recording,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<(), BackendError> {
        // Some drivers take what they replay from kernel objects, which get other values here.
        recording.forget();
        let mut costs = Vec::with_capacity(recording.steps.len());
        for (i, step) in recording.steps.iter_mut().enumerate() {
            let groups = step.groups(launch);
            if groups == 0 {
                // Steps that do not run now keep their known cost.
                costs.push(recording.cut.alone(i).unwrap_or(-1.0));
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "grids are far below 2^52")]
            let groups = groups as f64;
            let time = match step {
                Step::Dispatch(dispatch) => {
                    let known = recording.cut.cost(i);
                    self.measure_dispatch(dispatch, known, groups, launch, slicer)?
                }
                step => {
                    let start = Instant::now();
                    let event = step.enqueue(&self.queue, launch, None, true, &mut self.time)?;
                    self.done(event, start, slicer, &|code| step.failed(code))?
                }
            };
            costs.push(time / groups);
        }
        recording.cut.learn_alone(costs);
        Ok(())
    }

    /// Waits for a command and returns its time in nanoseconds.
    fn done(
        &mut self,
        event: Option<Event>,
        start: Instant,
        slicer: &mut Slicer,
        failed: &dyn Fn(Code) -> BackendError,
    ) -> Result<f64, BackendError> {
        let time = if let Some(event) = event {
            self.time.of(|| event.wait()).map_err(failed)?;
            event.check().map_err(failed)?;
            event.nanoseconds().ok()
        } else {
            // The driver returned no event.
            self.time.of(|| self.queue.finish()).map_err(failed)?;
            None
        };
        // Without the device's clock, use the host's, which shows more.
        let time = time.unwrap_or_else(|| nanoseconds_since(start));
        slicer.longest = slicer.longest.max(time);
        #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52 ns")]
        let time = time as f64;
        Ok(time)
    }

    /// Runs a dispatch or a part of it and returns its time in nanoseconds.
    fn timed(
        &mut self,
        dispatch: &mut PreparedDispatch,
        part: Option<GroupRange>,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<f64, BackendError> {
        let start = Instant::now();
        let event = dispatch.enqueue(&self.queue, launch, part, true, &mut self.time)?;
        self.done(event, start, slicer, &|code| dispatch.failed(code))
    }

    /// Runs a dispatch of `groups` work-groups and returns its time in nanoseconds. `known` is the
    /// known cost of a work-group.
    fn measure_dispatch(
        &mut self,
        dispatch: &mut PreparedDispatch,
        known: Option<f64>,
        groups: f64,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<f64, BackendError> {
        let grid = dispatch.grid(launch)?;
        let params = dispatch.values(launch)?;
        let known = known.or_else(|| slicer.known(dispatch.kernel, params));
        let time = match self.axis_of_parts(dispatch.kernel, grid) {
            // If it takes too long, that is reported when the recording is cut.
            Err(_) => self.timed(dispatch, None, launch, slicer)?,
            Ok(axis) => {
                let count = grid.get(axis).copied().unwrap_or(1).max(1);
                let each = known.map(|cost| cost * groups / f64::from(count));
                let of = |each| Measured { axis, count, each };
                let found = match each {
                    Some(each) => Some(of(each)),
                    None => self.pilot(dispatch, (axis, count), launch, slicer)?.map(of),
                };
                let fits = |m: &Measured| m.predicts(count) <= slicer.fill();
                match found.filter(|m| !fits(m)) {
                    Some(heavy) if self.is_ready_in_parts(dispatch, &heavy, launch, slicer.fill())? => {
                        self.in_parts(dispatch, heavy, launch, slicer)?
                    }
                    _ => self.timed(dispatch, None, launch, slicer)?,
                }
            }
        };
        slicer.know(dispatch.kernel, params, time / groups);
        Ok(time)
    }

    /// Runs some of the work-groups of a dispatch and returns the nanoseconds of those with one
    /// index on the axis; `None` if there is no memory to save what they overwrite.
    fn pilot(
        &mut self,
        dispatch: &mut PreparedDispatch,
        (axis, count): (usize, u32),
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<Option<f64>, BackendError> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let saved = if kernel.is_some_and(|k| k.rereads) {
            match self.save(&self.written(dispatch)) {
                Ok(saved) => Some(saved),
                Err(BackendError::OutOfMemory { why, .. }) => {
                    self.warn_once(
                        dispatch.kernel,
                        &format!("(not measured: not enough memory to run a part of it: {why})"),
                    );
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
        } else {
            None
        };
        let mut first = (count / PILOT).max(1);
        let mut before = f64::INFINITY;
        loop {
            let start = Instant::now();
            let queued = dispatch.enqueue_first(&self.queue, launch, (axis, first), &mut self.time);
            let time =
                queued.and_then(|event| self.done(event, start, slicer, &|code| dispatch.failed(code)));
            let time = match &saved {
                Some(saved) => {
                    let time = self.put_back(saved, time)?;
                    self.restore(saved)?;
                    time
                }
                None => time?,
            };
            let each = (time / f64::from(first)).min(before);
            let next = first.saturating_mul(GROWTH);
            let fits = |n: u32| each * f64::from(n) <= slicer.fill();
            if fits(count) || next >= count || (!fits(next) && before.is_finite()) {
                return Ok(Some(each));
            }
            if fits(next) {
                (first, before) = (next, f64::INFINITY);
            } else {
                // Repeat: the first run may have waited for memory, or for the device to wake up.
                before = each;
            }
        }
    }

    /// Makes a dispatch ready to run in parts, comparing them with the whole over as many
    /// work-groups as fit a slice if that has not been done. `false` if it cannot run in parts,
    /// which is logged.
    fn is_ready_in_parts(
        &mut self,
        dispatch: &mut PreparedDispatch,
        heavy: &Measured,
        launch: &Launch,
        fill: f64,
    ) -> Result<bool, BackendError> {
        if let Err(why) = self.arm_in_parts(dispatch)? {
            self.warn_once(dispatch.kernel, &format!("cannot be split: {why}"));
            return Ok(false);
        }
        if !self.is_unchecked(dispatch.kernel) {
            return Ok(true);
        }
        // At least two, so that one of them is not the first.
        let some = heavy.fitting(fill, 2);
        match self.check_parts(dispatch, (heavy.axis, some), launch)? {
            Ok(()) => Ok(true),
            Err(why) => {
                dispatch.in_parts = None;
                self.warn_once(dispatch.kernel, &format!("cannot be split: {why}"));
                Ok(false)
            }
        }
    }

    /// Runs a dispatch in parts, each as long as the previous measurement allows, and returns the
    /// total time in nanoseconds.
    fn in_parts(
        &mut self,
        dispatch: &mut PreparedDispatch,
        mut heavy: Measured,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<f64, BackendError> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small constant"
        )]
        let least = heavy.count.div_ceil(PARTS as u32);
        let (mut sum, mut first) = (0.0, 0);
        while first < heavy.count {
            let count = heavy.fitting(slicer.fill(), least).min(heavy.count - first);
            let part = GroupRange {
                axis: heavy.axis,
                first,
                count,
            };
            let time = self.timed(dispatch, Some(part), launch, slicer)?;
            heavy.each = time / f64::from(count);
            sum += time;
            first += count;
        }
        Ok(sum)
    }

    /// The memory that a dispatch writes.
    pub(super) fn written(&self, dispatch: &PreparedDispatch) -> Vec<Arc<Block>> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let writes = kernel.map(|k| k.writes.as_slice()).unwrap_or_default();
        let written = dispatch.args.iter().zip(writes).filter(|(_, w)| **w);
        written.map(|(block, _)| Arc::clone(block)).collect()
    }

    /// Copies memory to temporary buffers.
    pub(super) fn save(&mut self, written: &[Arc<Block>]) -> Result<Saved, BackendError> {
        let mut blocks: Vec<(Arc<Block>, Mem, usize)> = Vec::new();
        for block in written {
            let bytes = size(block.bytes, &block.label)?;
            let copy = self
                .context
                .buffer(bytes)
                .map_err(|code| block.error("clCreateBuffer of a copy", code))?;
            self.copy_in_pieces((&block.mem, &copy), bytes, block)?;
            blocks.push((Arc::clone(block), copy, bytes));
        }
        Ok(Saved { blocks })
    }

    /// Writes a pattern over the memory that was saved.
    pub(super) fn spoil(&mut self, saved: &Saved) -> Result<(), BackendError> {
        for (block, _, bytes) in &saved.blocks {
            for at in (0..*bytes).step_by(PIECE) {
                let piece = PIECE.min(bytes - at);
                self.time
                    .of(|| self.queue.fill(&block.mem, at, piece, PATTERN, false))
                    .map_err(|code| block.error("clEnqueueFillBuffer", code))?;
                if *bytes > PIECE {
                    self.time
                        .of(|| self.queue.finish())
                        .map_err(|code| code.while_waiting("clFinish"))?;
                }
            }
        }
        Ok(())
    }

    /// Restores the memory that was saved.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<(), BackendError> {
        for (block, copy, bytes) in &saved.blocks {
            self.copy_in_pieces((copy, &block.mem), *bytes, block)?;
        }
        Ok(())
    }

    /// Passes on `done`. On an error, restores what was `saved` first, since memory such as a KV
    /// cache outlives the run. If that fails too, the device counts as lost.
    pub(super) fn put_back<T>(
        &mut self,
        saved: &Saved,
        done: Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        match done {
            Ok(done) => Ok(done),
            Err(lost @ BackendError::Lost(_)) => Err(lost),
            Err(error) => Err(match self.restore(saved) {
                Ok(()) => error,
                Err(why) => BackendError::Lost(format!(
                    "{error}; the previous contents could not be restored: {why}"
                )),
            }),
        }
    }

    /// The current contents of the memory that was saved.
    pub(super) fn contents(&self, saved: &Saved) -> Result<Vec<Vec<u8>>, BackendError> {
        let read = |(block, _, bytes): &(Arc<Block>, Mem, usize)| {
            let mut found = vec![0; *bytes];
            let read = self.queue.read(&block.mem, 0, &mut found);
            read.map_err(|code| {
                code.while_waiting(format!("clEnqueueReadBuffer from buffer {}", block.label))
            })?;
            Ok(found)
        };
        saved.blocks.iter().map(read).collect()
    }

    fn copy_in_pieces(
        &mut self,
        (src, dst): (&Mem, &Mem),
        bytes: usize,
        block: &Block,
    ) -> Result<(), BackendError> {
        for at in (0..bytes).step_by(PIECE) {
            let piece = PIECE.min(bytes - at);
            self.time
                .of(|| self.queue.copy((src, at), (dst, at), piece, false))
                .map_err(|code| block.error("clEnqueueCopyBuffer", code))?;
            if bytes > PIECE {
                self.time
                    .of(|| self.queue.finish())
                    .map_err(|code| code.while_waiting("clFinish"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_fit_run() {
        let heavy = |each| Measured {
            axis: 0,
            count: 100,
            each,
        };
        assert_eq!(heavy(2.0).fitting(10.0, 1), 5);
        assert_eq!(heavy(20.0).fitting(10.0, 1), 1, "one at least");
        assert_eq!(heavy(20.0).fitting(10.0, 2), 2);
        assert_eq!(heavy(0.0).fitting(10.0, 1), 100, "not more than there are");
        assert!((heavy(0.5).predicts(100) - 50.0).abs() < 1e-9);
    }
}
