//! First runs of recordings: what each command takes is found out, and nothing runs that is predicted to take more than a slice.
//!
//! Of a kernel of which nothing is known with these parameters, the first work-groups along an axis run before the others: a small share of them,
//! and a larger one as long as the last has shown that it fits a slice. What they took predicts the whole, rather too high than too low, as few
//! work-groups do not fill a device. A kernel that does not ask for the number of work-groups on an axis takes no notice of their being fewer; one that reads what
//! it writes finds all as it was before. A dispatch that does not fit runs in parts, which are compared with as many work-groups of the
//! whole as fit a slice.

use super::driver::{Code, Event, Mem};
use super::record::{Block, Dispatch, Part, Step};
use super::replay::Recording;
use super::slice::{PARTS, Slicer};
use super::{OpenCl, size};
use crate::backend::{BackendError, Launch};
use std::sync::Arc;
use std::time::Instant;

/// Share of the work-groups that the first pilot runs.
const PILOT: u32 = 64;
/// How much larger the next pilot is.
const GROWTH: u32 = 4;
/// Bytes that are copied aside at a time, far less than a slice of any device.
const PIECE: usize = 4 << 20;

/// A byte of which no results are made.
const PATTERN: u8 = 0xA5;

/// What a dispatch writes, as it was before.
pub(super) struct Saved {
    blocks: Vec<(Arc<Block>, Mem, usize)>,
}

/// A dispatch that is measured.
struct Measured {
    axis: usize,
    /// Work-groups on the axis.
    count: u32,
    /// Nanoseconds of those that share a place on the axis.
    each: f64,
}

impl Measured {
    fn predicts(&self, count: u32) -> f64 {
        self.each * f64::from(count)
    }

    /// How many fit a slice, at least `least` of them.
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
    /// Runs a recording command by command, none that is predicted to take more than a slice, and notes what each takes.
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
                // What does not run now keeps what is known of it.
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

    /// Waits for a command, and tells the nanoseconds that it took.
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
            // The driver gave no event.
            self.time.of(|| self.queue.finish()).map_err(failed)?;
            None
        };
        // Without the device's clock the host's, which shows more.
        let time = time.unwrap_or_else(|| u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        slicer.longest = slicer.longest.max(time);
        #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52 ns")]
        let time = time as f64;
        Ok(time)
    }

    /// Runs a dispatch, or a part of it, and tells the nanoseconds that it took.
    fn timed(
        &mut self,
        dispatch: &mut Dispatch,
        part: Option<Part>,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<f64, BackendError> {
        let start = Instant::now();
        let event = dispatch.enqueue(&self.queue, launch, part, true, &mut self.time)?;
        self.done(event, start, slicer, &|code| dispatch.failed(code))
    }

    /// Runs a dispatch of `groups` work-groups, and tells the nanoseconds that it took. `known` is what a work-group is known to take.
    fn measure_dispatch(
        &mut self,
        dispatch: &mut Dispatch,
        known: Option<f64>,
        groups: f64,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<f64, BackendError> {
        let grid = dispatch.grid(launch)?;
        let params = dispatch.values(launch)?;
        let known = known.or_else(|| slicer.known(dispatch.kernel, params));
        let time = match self.axis_of_parts(dispatch.kernel, grid) {
            // It is said of those that take too long when the recording is cut.
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

    /// Runs some of the work-groups of a dispatch and tells the nanoseconds of those that share a place on the axis; `None` where there is no memory
    /// to have all as it was.
    fn pilot(
        &mut self,
        dispatch: &mut Dispatch,
        (axis, count): (usize, u32),
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<Option<f64>, BackendError> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let saved = if kernel.is_some_and(|k| k.rereads) {
            match self.save(&self.written(dispatch)) {
                Ok(saved) => Some(saved),
                Err(BackendError::OutOfMemory { why, .. }) => {
                    self.tell(
                        dispatch.kernel,
                        &format!("perhaps, as there is no memory to try a part of it: {why}"),
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
                // Once more: the first one may have waited for memory, or for the device to wake.
                before = each;
            }
        }
    }

    /// Makes a dispatch ready to run in parts, which are compared with the whole over as many work-groups as fit a slice, unless they were before.
    /// False where it cannot run so, which is said.
    fn is_ready_in_parts(
        &mut self,
        dispatch: &mut Dispatch,
        heavy: &Measured,
        launch: &Launch,
        fill: f64,
    ) -> Result<bool, BackendError> {
        if let Err(why) = self.arm_in_parts(dispatch)? {
            self.tell(dispatch.kernel, &format!("is not cut: {why}"));
            return Ok(false);
        }
        if !self.is_unchecked(dispatch.kernel) {
            return Ok(true);
        }
        // With less than two there is none that is not the first.
        let some = heavy.fitting(fill, 2);
        match self.check_parts(dispatch, (heavy.axis, some), launch)? {
            Ok(()) => Ok(true),
            Err(why) => {
                dispatch.in_parts = None;
                self.tell(dispatch.kernel, &format!("is not cut: {why}"));
                Ok(false)
            }
        }
    }

    /// Runs a dispatch in parts, each as long as what was measured before allows, and tells the nanoseconds of all.
    fn in_parts(
        &mut self,
        dispatch: &mut Dispatch,
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
            let part = Part {
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

    /// What a dispatch writes.
    pub(super) fn written(&self, dispatch: &Dispatch) -> Vec<Arc<Block>> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let writes = kernel.map(|k| k.writes.as_slice()).unwrap_or_default();
        let written = dispatch.args.iter().zip(writes).filter(|(_, w)| **w);
        written.map(|(block, _)| Arc::clone(block)).collect()
    }

    /// Copies memory aside.
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

    /// Writes a pattern over what was copied aside.
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

    /// Copies back what was copied aside.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<(), BackendError> {
        for (block, copy, bytes) in &saved.blocks {
            self.copy_in_pieces((copy, &block.mem), *bytes, block)?;
        }
        Ok(())
    }

    /// `done`, after an error with all as it was `saved`: what is written to may outlive the run, as a cache does. Where that cannot be had the
    /// device counts as lost.
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
                Err(why) => {
                    BackendError::Lost(format!("{error}; what was there before is not put back: {why}"))
                }
            }),
        }
    }

    /// What is there now of what was copied aside.
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
