//! Submissions in slices, and kernels that run in parts of their grids.
//!
//! A kernel for parts is another program, which the compiler may translate differently, and drivers
//! may treat offsets wrongly. Before its parts are used, the results of some are compared bit for
//! bit with those of the plain kernel over the same work-groups, once per device and driver. If
//! they differ, the kernel runs as a whole.

use super::build::PARTS_DIFFER;
use super::pilot::Saved;
use super::record::{Armed, PreparedDispatch, Step};
use super::replay::Recording;
use super::slice::{Slicer, divide};
use super::{OpenCl, with_operands};
use crate::backend::{BackendError, KernelId, Launch, NOTE, RecordingId};
use std::collections::HashMap;

/// Number of parts that are compared with the whole.
const COMPARED: u32 = 4;

/// Number of comparisons without a result before giving up. Each costs a run command by command.
const MAX_TRIES: u32 = 3;

impl OpenCl {
    /// The axis along which a dispatch can run in parts: the longest one whose number of
    /// work-groups the kernel does not query.
    pub(super) fn axis_of_parts(&self, kernel: KernelId, grid: [u32; 3]) -> Result<usize, String> {
        let free = self
            .kernels
            .get(kernel.0 as usize)
            .map_or([false; 3], |k| k.free_axes);
        let axes = free.into_iter().zip(grid).enumerate();
        let longest = axes
            .filter(|(_, (free, n))| *free && *n > 1)
            .max_by_key(|(_, (_, n))| *n);
        longest
            .map(|(axis, _)| axis)
            .ok_or_else(|| format!("its grid of {grid:?} work-groups cannot run in parts"))
    }

    /// Builds the program for parts of a kernel, unless that was tried before.
    fn build_in_parts(&mut self, kernel: KernelId) -> Result<(), BackendError> {
        let index = kernel.0 as usize;
        if self.kernels.get(index).is_none_or(|k| k.in_parts.is_some()) {
            return Ok(());
        }
        let spec = self.cache.iter().find(|(_, id)| **id == kernel);
        let Some(mut spec) = spec.map(|(spec, _)| spec.clone()) else {
            return Ok(());
        };
        let reads_images = |k: &super::Compiled| k.images.iter().any(Option::is_some);
        if !self.kernels.get(index).is_some_and(reads_images) {
            // The spec may stand for a kernel whose images the driver refused.
            spec.images.clear();
        }
        let made = match self.builder().build_in_parts(&spec) {
            Err(lost @ BackendError::Lost(_)) => return Err(lost),
            Err(e) => Err(e.to_string()),
            Ok(made) => made,
        };
        match &made {
            Ok((_, true)) => self.stats.cached += 1,
            Ok((_, false)) => self.stats.compiles += 1,
            Err(_) => {}
        }
        if let Some(kernel) = self.kernels.get_mut(index) {
            kernel.in_parts = Some(made.map(|(parts, _)| parts));
        }
        Ok(())
    }

    /// Makes the kernel of a dispatch ready to run in parts; the inner error is the reason why it
    /// cannot.
    pub(super) fn arm_in_parts(
        &mut self,
        dispatch: &mut PreparedDispatch,
    ) -> Result<Result<(), String>, BackendError> {
        self.build_in_parts(dispatch.kernel)?;
        let unknown = || Ok(Err("the kernel is unknown".to_owned()));
        let Some(kernel) = self.kernels.get(dispatch.kernel.0 as usize) else {
            return unknown();
        };
        match &kernel.in_parts {
            Some(Ok(_)) if dispatch.in_parts.is_some() => Ok(Ok(())),
            Some(Ok(parts)) => match with_operands(&parts.program, kernel, &dispatch.args) {
                Ok(object) => {
                    dispatch.in_parts = Some(Armed {
                        object,
                        held: Vec::new(),
                    });
                    Ok(Ok(()))
                }
                Err(lost @ BackendError::Lost(_)) => Err(lost),
                Err(e) => Ok(Err(e.to_string())),
            },
            Some(Err(why)) => {
                // It may have been armed before the error was found.
                dispatch.in_parts = None;
                Ok(Err(why.clone()))
            }
            None => unknown(),
        }
    }

    /// Records once per kernel that its dispatches exceed a slice; [`OpenCl::tell_of_slices`] logs
    /// them together.
    pub(super) fn warn_once(&mut self, kernel: KernelId, why: &str) {
        if let Some(kernel) = self.kernels.get_mut(kernel.0 as usize)
            && !std::mem::replace(&mut kernel.warned, true)
        {
            self.above_slice.push(format!("{} {why}", kernel.name));
        }
    }

    /// Logs the kernels found to exceed a slice since the last call.
    pub(super) fn tell_of_slices(&mut self) {
        if !self.above_slice.is_empty() {
            let kernels = std::mem::take(&mut self.above_slice).join("; ");
            log::warn!(target: NOTE, "kernels take longer than a time slice on {}: {kernels}", self.caps.device);
        }
    }

    /// Cuts a recording for `launch` into slices; the times of all its steps are known.
    fn cut(&mut self, recording: &mut Recording, launch: &Launch, budget: u64) -> Result<(), BackendError> {
        let mut axes = HashMap::new();
        for step in recording.cut.above(budget, &recording.steps, launch) {
            let Some(Step::Dispatch(dispatch)) = recording.steps.get_mut(step) else {
                continue;
            };
            let grid = launch.grids.get(dispatch.step).copied().unwrap_or_default();
            let armed = match self.axis_of_parts(dispatch.kernel, grid) {
                Ok(axis) => self.arm_in_parts(dispatch)?.map(|()| axis),
                Err(why) => Err(why),
            };
            match armed {
                Ok(axis) => {
                    axes.insert(step, axis);
                }
                Err(why) => self.warn_once(dispatch.kernel, &format!("cannot be split: {why}")),
            }
        }
        recording.forget();
        recording
            .cut
            .renew(budget, &recording.steps, launch, &|step| axes.get(&step).copied());
        for (step, parts) in recording.cut.above_in_parts(budget) {
            if let Some(Step::Dispatch(dispatch)) = recording.steps.get(step) {
                self.warn_once(dispatch.kernel, &format!("even when split into {parts} parts"));
            }
        }
        Ok(())
    }

    /// Whether the parts of a kernel have not yet been compared with the whole.
    pub(super) fn is_unchecked(&self, kernel: KernelId) -> bool {
        let kernel = self.kernels.get(kernel.0 as usize);
        let parts = kernel.and_then(|k| k.in_parts.as_ref());
        parts.is_some_and(|p| p.as_ref().is_ok_and(|p| p.unchecked.is_some()))
    }

    /// Whether the cut of a recording uses a kernel for parts that has not yet been compared with
    /// the whole.
    fn has_unchecked(&self, recording: &Recording) -> bool {
        let parts = recording.cut.parts();
        parts.keys().any(|step| match recording.steps.get(*step) {
            Some(Step::Dispatch(d)) => self.is_unchecked(d.kernel),
            _ => false,
        })
    }

    /// Compares the parts of a dispatch with the whole over the first work-groups of an axis, and
    /// stores whether they give the same bits. Restores everything that the dispatch writes. The
    /// inner error is the reason why it cannot run in parts.
    pub(super) fn check_parts(
        &mut self,
        dispatch: &mut PreparedDispatch,
        first: (usize, u32),
        launch: &Launch,
    ) -> Result<Result<(), String>, BackendError> {
        let saved = match self.save(&self.written(dispatch)) {
            Ok(saved) => saved,
            Err(BackendError::OutOfMemory { why, .. }) => {
                let why = format!("not enough memory to compare its parts: {why}");
                return Ok(Err(self.untold(dispatch.kernel, why)));
            }
            Err(e) => return Err(e),
        };
        let compared = self.compare(dispatch, first, launch, &saved);
        let verdict = match self.put_back(&saved, compared)? {
            Some(true) => Ok(()),
            Some(false) => Err(PARTS_DIFFER.to_owned()),
            // Try again later.
            None => {
                let why = "the comparison found no changed values".to_owned();
                return Ok(Err(self.untold(dispatch.kernel, why)));
            }
        };
        let Some(kernel) = self.kernels.get_mut(dispatch.kernel.0 as usize) else {
            return Ok(verdict);
        };
        let checked = match &mut kernel.in_parts {
            Some(Ok(made)) => made
                .unchecked
                .take()
                .map(|text| (made.name.clone(), text, verdict.is_ok())),
            _ => None,
        };
        if let Err(why) = &verdict {
            kernel.in_parts = Some(Err(why.clone()));
        }
        if let Some((name, text, is_right)) = checked {
            self.builder().store_program_result(&name, &text, is_right);
        }
        Ok(verdict)
    }

    /// Counts a comparison that had no result because of `why`; after a few of them the kernel does
    /// not run in parts.
    fn untold(&mut self, kernel: KernelId, why: String) -> String {
        let kernel = self.kernels.get_mut(kernel.0 as usize);
        if let Some(in_parts) = kernel.and_then(|k| k.in_parts.as_mut())
            && let Ok(parts) = in_parts
        {
            parts.tries += 1;
            if parts.tries >= MAX_TRIES {
                *in_parts = Err(why.clone());
            }
        }
        why
    }

    /// Runs the first `count` work-groups of an axis in parts, and then at once over the same
    /// initial memory. `true` if everything they write is the same; `None` if they change nothing,
    /// which proves nothing. Memory is as `saved` afterwards, except after an error.
    fn compare(
        &mut self,
        dispatch: &mut PreparedDispatch,
        (axis, count): (usize, u32),
        launch: &Launch,
        saved: &Saved,
    ) -> Result<Option<bool>, BackendError> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let rereads = kernel.is_none_or(|k| k.rereads);
        if !rereads {
            // The memory may hold the results of an earlier run.
            self.spoil(saved)?;
        }
        let before = self.contents(saved)?;
        let mut grid = [1; 3];
        if let Some(n) = grid.get_mut(axis) {
            *n = count;
        }
        for part in divide(grid, axis, COMPARED) {
            dispatch.enqueue(&self.queue, launch, Some(part), false, &mut self.time)?;
        }
        let in_parts = self.contents(saved)?;
        if rereads {
            self.restore(saved)?;
        } else {
            self.spoil(saved)?;
        }
        dispatch.enqueue_first(&self.queue, launch, (axis, count), &mut self.time)?;
        let whole = self.contents(saved)?;
        self.restore(saved)?;
        Ok((whole != before).then_some(in_parts == whole))
    }

    /// Submits a recording in slices. `true` if the driver replayed all dispatches.
    pub(super) fn submit_in_slices(
        &mut self,
        id: RecordingId,
        recording: &mut Recording,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<bool, BackendError> {
        recording.learn(id, slicer);
        let mut measures = recording.cut.is_unknown(&recording.steps, launch);
        if !measures && recording.cut.is_stale(launch) {
            self.cut(recording, launch, slicer.budget)?;
            // Parts are compared while their operands are available.
            measures = self.has_unchecked(recording);
        }
        if measures {
            slicer.drain(0, &self.queue)?;
            self.measure(recording, launch, slicer)?;
            return Ok(false);
        }
        recording.submit_slices(id, launch, slicer, &mut self.target())
    }
}
