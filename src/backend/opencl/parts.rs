//! Submissions in slices, and kernels that run in parts of their grids.
//!
//! A kernel for parts is another program, of whose compiler's work nothing is known, nor of what a driver makes of the offsets. So before its
//! parts are used their results are compared with those of the whole dispatch, bit for bit, once for a device and its driver, and it runs as a whole
//! where they differ.

use super::build::PARTS_DIFFER;
use super::record::{Armed, Block, Dispatch, Part, Step};
use super::replay::Recording;
use super::slice::Slicer;
use super::{OpenCl, size, with_operands};
use crate::backend::{BackendError, KernelId, Launch, RecordingId};
use std::collections::HashMap;
use std::sync::Arc;

impl OpenCl {
    /// Along which axis parts of a dispatch can run: the longest of which the kernel does not ask for the number of work-groups.
    fn axis_of_parts(&self, kernel: KernelId, grid: [u32; 3]) -> Result<usize, String> {
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
            .ok_or_else(|| format!("of its {grid:?} work-groups none can run apart"))
    }

    /// Makes the program for parts of a kernel, unless that was tried before.
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
            // It may be known by that of a kernel whose images the driver refused.
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

    /// Makes the kernel of a dispatch ready to run in parts; in words why it cannot.
    fn arm_in_parts(&mut self, dispatch: &mut Dispatch) -> Result<Result<(), String>, BackendError> {
        if dispatch.in_parts.is_some() {
            return Ok(Ok(()));
        }
        self.build_in_parts(dispatch.kernel)?;
        let unknown = || Ok(Err("it is unknown".to_owned()));
        let Some(kernel) = self.kernels.get(dispatch.kernel.0 as usize) else {
            return unknown();
        };
        match &kernel.in_parts {
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
            Some(Err(why)) => Ok(Err(why.clone())),
            None => unknown(),
        }
    }

    /// Says once of a kernel that its dispatches take more than a slice.
    fn tell(&mut self, kernel: KernelId, why: &str) {
        if let Some(kernel) = self.kernels.get_mut(kernel.0 as usize)
            && !std::mem::replace(&mut kernel.told, true)
        {
            log::warn!("opencl: kernel {} takes more than a slice {why}", kernel.name);
        }
    }

    /// Cuts a recording for `launch`, of whose steps all times are known.
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
                Err(why) => self.tell(dispatch.kernel, &format!("and is not cut: {why}")),
            }
        }
        recording.forget();
        recording
            .cut
            .renew(budget, &recording.steps, launch, &|step| axes.get(&step).copied());
        for (step, parts) in recording.cut.above_in_parts(budget) {
            if let Some(Step::Dispatch(dispatch)) = recording.steps.get(step) {
                self.tell(dispatch.kernel, &format!("even in {parts} parts"));
            }
        }
        Ok(())
    }

    /// The parts of a kernel were not yet compared with the whole.
    fn is_unchecked(&self, kernel: KernelId) -> bool {
        let kernel = self.kernels.get(kernel.0 as usize);
        let parts = kernel.and_then(|k| k.in_parts.as_ref());
        parts.is_some_and(|p| p.as_ref().is_ok_and(|p| p.unchecked.is_some()))
    }

    /// Runs a recording, whole dispatches one after another, if kernels for parts in its cut were not yet compared with the whole, and compares
    /// them. False where there was nothing to compare, and nothing ran.
    fn check_parts(&mut self, recording: &mut Recording, launch: &Launch) -> Result<bool, BackendError> {
        let parts = recording.cut.parts();
        let unchecked = |step: &usize| match recording.steps.get(*step) {
            Some(Step::Dispatch(d)) => self.is_unchecked(d.kernel),
            _ => false,
        };
        if !parts.keys().any(unchecked) {
            return Ok(false);
        }
        for (i, step) in recording.steps.iter_mut().enumerate() {
            match (step, parts.get(&i)) {
                (Step::Dispatch(d), Some(parts)) if self.is_unchecked(d.kernel) => {
                    self.check_dispatch(d, parts, launch)?;
                }
                (step, _) => {
                    step.enqueue(&self.queue, launch, None, false, &mut self.time)?;
                }
            }
            self.time
                .of(|| self.queue.finish())
                .map_err(|code| code.while_waiting("clFinish"))?;
        }
        for step in &mut recording.steps {
            if let Step::Dispatch(d) = step {
                let kernel = self.kernels.get(d.kernel.0 as usize);
                if kernel.is_some_and(|k| matches!(k.in_parts, Some(Err(_)))) {
                    d.in_parts = None;
                    recording.cut.outdate();
                }
            }
        }
        Ok(true)
    }

    /// Runs a dispatch and notes whether its parts give the same bits.
    fn check_dispatch(
        &mut self,
        dispatch: &mut Dispatch,
        parts: &[Part],
        launch: &Launch,
    ) -> Result<(), BackendError> {
        let verdict = match self.compare(dispatch, parts, launch) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PARTS_DIFFER.to_owned()),
            Err(BackendError::OutOfMemory { why, .. }) => {
                dispatch.enqueue(&self.queue, launch, None, false, &mut self.time)?;
                Err(format!("no memory to compare its parts: {why}"))
            }
            Err(e) => return Err(e),
        };
        let Some(kernel) = self.kernels.get_mut(dispatch.kernel.0 as usize) else {
            return Ok(());
        };
        let checked = match (&mut kernel.in_parts, &verdict) {
            (Some(Ok(made)), Ok(())) => made.unchecked.take().map(|text| (made.name.clone(), text, true)),
            (Some(Ok(made)), Err(why)) if why == PARTS_DIFFER => {
                made.unchecked.take().map(|text| (made.name.clone(), text, false))
            }
            _ => None,
        };
        if let Err(why) = verdict {
            kernel.in_parts = Some(Err(why));
        }
        if let Some((name, text, is_right)) = checked {
            self.builder().keep_parts(&name, &text, is_right);
        }
        Ok(())
    }

    /// Runs a dispatch in parts, and then as a whole over what was there before. True where all that it writes is the same. Nothing has run after
    /// [`BackendError::OutOfMemory`].
    fn compare(
        &mut self,
        dispatch: &mut Dispatch,
        parts: &[Part],
        launch: &Launch,
    ) -> Result<bool, BackendError> {
        let kernel = self.kernels.get(dispatch.kernel.0 as usize);
        let writes = kernel.map(|k| k.writes.clone()).unwrap_or_default();
        let written = dispatch.args.iter().zip(writes).filter(|(_, w)| *w);
        let written: Vec<Arc<Block>> = written.map(|(block, _)| Arc::clone(block)).collect();
        let mut before = Vec::with_capacity(written.len());
        for block in &written {
            let bytes = size(block.bytes, &block.label)?;
            let copy = self
                .context
                .buffer(bytes)
                .map_err(|code| block.error("clCreateBuffer of a copy", code))?;
            self.queue
                .copy((&block.mem, 0), (&copy, 0), bytes, false)
                .map_err(|code| block.error("clEnqueueCopyBuffer", code))?;
            before.push((block, copy, bytes));
        }
        let results = |cl: &Self| -> Result<Vec<Vec<u8>>, BackendError> {
            let read = |(block, _, bytes): &(&Arc<Block>, _, usize)| {
                let mut found = vec![0; *bytes];
                let read = cl.queue.read(&block.mem, 0, &mut found);
                read.map_err(|code| {
                    code.while_waiting(format!("clEnqueueReadBuffer from buffer {}", block.label))
                })?;
                Ok(found)
            };
            before.iter().map(read).collect()
        };
        for part in parts {
            dispatch.enqueue(&self.queue, launch, Some(*part), false, &mut self.time)?;
        }
        let in_parts = results(self)?;
        for (block, copy, bytes) in &before {
            self.queue
                .copy((copy, 0), (&block.mem, 0), *bytes, false)
                .map_err(|code| code.at(format!("clEnqueueCopyBuffer to buffer {}", block.label)))?;
        }
        dispatch.enqueue(&self.queue, launch, None, false, &mut self.time)?;
        Ok(in_parts == results(self)?)
    }

    /// Submits a recording in slices. True where all came from the driver's recordings.
    pub(super) fn submit_in_slices(
        &mut self,
        id: RecordingId,
        recording: &mut Recording,
        launch: &Launch,
        slicer: &mut Slicer,
    ) -> Result<bool, BackendError> {
        recording.learn(id, slicer);
        if recording.cut.is_unknown(&recording.steps, launch) {
            slicer.drain(0, &self.queue)?;
            recording.calibrate(launch, slicer, &mut self.target())?;
            return Ok(false);
        }
        if recording.cut.is_stale(launch) {
            self.cut(recording, launch, slicer.budget)?;
            if !recording.cut.parts().is_empty() {
                slicer.drain(0, &self.queue)?;
                if self.check_parts(recording, launch)? {
                    return Ok(false);
                }
            }
        }
        recording.submit_slices(id, launch, slicer, &mut self.target())
    }
}
