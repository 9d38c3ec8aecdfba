//! Submissions in slices, and kernels that run in parts of their grids.

use super::record::{Armed, Dispatch, Step};
use super::replay::Recording;
use super::slice::Slicer;
use super::{OpenCl, with_operands};
use crate::backend::{BackendError, KernelId, Launch, RecordingId};
use std::collections::HashMap;

/// Put before a kernel's text so that it runs from any work-group on: the driver's function counts from the first that is queued.
const IN_PARTS: &str =
    "#define get_group_id(d) (get_group_id(d) + get_global_offset(d) / get_local_size(d))\n";

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

    /// Makes the kernel of a dispatch ready to run in parts.
    fn arm_in_parts(&mut self, dispatch: &mut Dispatch) -> Result<(), String> {
        if dispatch.in_parts.is_some() {
            return Ok(());
        }
        let index = dispatch.kernel.0 as usize;
        let made = self.kernels.get(index).is_some_and(|k| k.in_parts.is_some());
        if !made {
            let spec = self.cache.iter().find(|(_, id)| **id == dispatch.kernel);
            let mut spec = spec.map(|(spec, _)| spec.clone()).ok_or("it is unknown")?;
            if self
                .kernels
                .get(index)
                .is_some_and(|k| k.images.iter().all(Option::is_none))
            {
                // It may be known by that of a kernel whose images the driver refused.
                spec.images.clear();
            }
            let program = self
                .builder()
                .source(&spec)
                .map_err(|e| e.to_string())
                .and_then(|source| {
                    let program = self.context.program(&(IN_PARTS.to_owned() + &source));
                    let program = program.map_err(|code| format!("clCreateProgramWithSource: {code}"))?;
                    program
                        .build(self.device)
                        .map_err(|code| format!("clBuildProgram: {code}"))?;
                    Ok(program)
                });
            if let Some(kernel) = self.kernels.get_mut(index) {
                kernel.in_parts = Some(program);
                self.stats.compiles += 1;
            }
        }
        let kernel = self.kernels.get(index).ok_or("it is unknown")?;
        match &kernel.in_parts {
            Some(Ok(program)) => {
                let object = with_operands(program, kernel, &dispatch.args).map_err(|e| e.to_string())?;
                dispatch.in_parts = Some(Armed {
                    object,
                    held: Vec::new(),
                });
                Ok(())
            }
            Some(Err(why)) => Err(why.clone()),
            None => Err("it is unknown".to_owned()),
        }
    }

    /// Cuts a recording for `launch`, of whose steps all times are known.
    fn cut(&mut self, recording: &mut Recording, launch: &Launch, budget: u64) {
        let mut axes = HashMap::new();
        for step in recording.cut.above(budget, &recording.steps, launch) {
            let Some(Step::Dispatch(dispatch)) = recording.steps.get_mut(step) else {
                continue;
            };
            let grid = launch.grids.get(dispatch.step).copied().unwrap_or_default();
            let axis = self.axis_of_parts(dispatch.kernel, grid);
            match axis.and_then(|axis| self.arm_in_parts(dispatch).map(|()| axis)) {
                Ok(axis) => {
                    axes.insert(step, axis);
                }
                Err(why) => {
                    let kernel = self.kernels.get_mut(dispatch.kernel.0 as usize);
                    if kernel.is_some_and(|k| !std::mem::replace(&mut k.told, true)) {
                        log::warn!(
                            "opencl: kernel {} takes more than a slice and is not cut: {why}",
                            dispatch.name
                        );
                    }
                }
            }
        }
        recording.forget();
        recording
            .cut
            .renew(budget, &recording.steps, launch, &|step| axes.get(&step).copied());
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
            slicer.drain(0)?;
            recording.calibrate(launch, &mut self.target())?;
            return Ok(false);
        }
        if recording.cut.is_stale(launch) {
            self.cut(recording, launch, slicer.budget);
        }
        recording.submit_slices(id, launch, slicer, &mut self.target())
    }
}
