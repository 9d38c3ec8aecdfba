//! Commands with their OpenCL objects created and their arguments set, ready for submission.

use super::driver::{Code, Event, KernelObject, Mem, Queue, Ready};
use crate::backend::{BackendError, Launch, nanoseconds_since};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// A buffer or sub-buffer with what an error message needs. Shared with the recordings that use it,
/// so that the driver's object lives as long as a kernel object that refers to it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) mem: Mem,
    pub(super) label: Arc<str>,
    pub(super) bytes: u64,
}

impl Block {
    /// The error for a failed `call` on this memory; drivers may allocate it that late.
    pub(super) fn error(&self, call: &str, code: Code) -> BackendError {
        if code.is_out_of_memory() {
            BackendError::OutOfMemory {
                label: self.label.to_string(),
                bytes: self.bytes,
                why: format!("{call}: {code}"),
            }
        } else {
            code.at(format!("{call} on buffer {}", self.label))
        }
    }
}

/// Time spent in driver calls by submissions.
#[derive(Debug, Default)]
pub(super) struct DriverTime {
    pub(super) nanoseconds: u64,
}

impl DriverTime {
    /// Makes a call and adds its time.
    pub(super) fn of<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.nanoseconds += nanoseconds_since(start);
        result
    }
}

/// A dispatch with its own kernel object, because a kernel object holds the argument values.
#[derive(Debug)]
pub(super) struct PreparedDispatch {
    /// The kernel with its operands set.
    pub(super) object: KernelObject,
    /// Bytes of the parameter struct in the kernel object now; empty before the first submission.
    pub(super) held: Vec<u8>,
    /// Kernel and defines, for errors.
    pub(super) name: Arc<str>,
    pub(super) workgroup: u32,
    /// Index of the parameter struct among the kernel's arguments.
    pub(super) params_index: u32,
    /// Range of the parameter struct in [`Launch::params`].
    pub(super) params: Range<usize>,
    pub(super) step: usize,
    /// Memory that the kernel object refers to.
    pub(super) args: Vec<Arc<Block>>,
}

#[derive(Debug)]
pub(super) enum Step {
    Dispatch(PreparedDispatch),
    Copy {
        src: (Arc<Block>, usize),
        dst: (Arc<Block>, usize),
        bytes: usize,
    },
    Fill {
        dst: (Arc<Block>, usize),
        bytes: usize,
        byte: u8,
    },
}

impl Step {
    /// Queues the command. Returns its event if `timed` and there is something to run.
    pub(super) fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        timed: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        match self {
            Self::Dispatch(dispatch) => dispatch.enqueue(queue, launch, timed, time),
            Self::Copy { bytes: 0, .. } | Self::Fill { bytes: 0, .. } => Ok(None),
            Self::Copy { src, dst, bytes } => time
                .of(|| queue.copy((&src.0.mem, src.1), (&dst.0.mem, dst.1), *bytes, timed))
                .map_err(|code| dst.0.error("clEnqueueCopyBuffer", code)),
            Self::Fill { dst, bytes, byte } => time
                .of(|| queue.fill(&dst.0.mem, dst.1, *bytes, *byte, timed))
                .map_err(|code| dst.0.error("clEnqueueFillBuffer", code)),
        }
    }

    /// Number of work-groups that it runs; 1 for a command that is not a dispatch.
    pub(super) fn groups(&self, launch: &Launch) -> u64 {
        match self {
            Self::Dispatch(d) => {
                let grid = launch.grids.get(d.step).copied().unwrap_or_default();
                grid.map(u64::from).into_iter().fold(1, u64::saturating_mul)
            }
            Self::Copy { bytes, .. } | Self::Fill { bytes, .. } => u64::from(*bytes != 0),
        }
    }

    /// What it is, for messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Dispatch(dispatch) => format!("kernel {}", dispatch.name),
            Self::Copy { src, dst, .. } => format!("copy from buffer {} to {}", src.0.label, dst.0.label),
            Self::Fill { dst, .. } => format!("fill of buffer {}", dst.0.label),
        }
    }
}

impl PreparedDispatch {
    fn refused(&self, why: String) -> BackendError {
        BackendError::Driver {
            call: format!("kernel {}", self.name),
            why,
        }
    }

    /// Its grid in `launch`.
    pub(super) fn grid(&self, launch: &Launch) -> Result<[u32; 3], BackendError> {
        launch.grids.get(self.step).copied().ok_or_else(|| {
            let all = launch.grids.len();
            self.refused(format!("expected grid {}, found a launch with {all}", self.step))
        })
    }

    /// Its parameters in `launch`.
    pub(super) fn values<'a>(&self, launch: &'a Launch) -> Result<&'a [u8], BackendError> {
        launch.params.get(self.params.clone()).ok_or_else(|| {
            let (range, all) = (&self.params, launch.params.len());
            self.refused(format!(
                "expected parameters at {range:?}, found a launch with {all} bytes"
            ))
        })
    }

    /// Global size for a grid.
    pub(super) fn global(&self, grid: [u32; 3]) -> Result<[usize; 3], BackendError> {
        let [x, y, z] = grid.map(|n| n as usize);
        let local = self.workgroup as usize;
        let wide = x
            .checked_mul(local)
            .ok_or_else(|| self.refused(format!("{x} work-groups of {local} exceed the address range")))?;
        Ok([wide, y, z])
    }

    /// Sets the parameters. `None` if there is nothing to run.
    pub(super) fn ready(
        &mut self,
        launch: &Launch,
        time: &mut DriverTime,
    ) -> Result<Option<Ready<'_>>, BackendError> {
        let grid = self.grid(launch)?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let params = self.values(launch)?;
        let global = self.global(grid)?;
        if self.held != params {
            time.of(|| self.object.set_bytes(self.params_index, params))
                .map_err(|code| code.at(format!("clSetKernelArg of kernel {}", self.name)))?;
            self.held.clear();
            self.held.extend_from_slice(params);
        }
        Ok(Some(Ready {
            kernel: &self.object,
            global,
            local: [self.workgroup as usize, 1, 1],
        }))
    }

    fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        timed: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        let Some(ready) = self.ready(launch, time)? else {
            return Ok(None);
        };
        let queued = time.of(|| queue.dispatch(&ready, timed));
        let global = ready.global;
        let bytes = |args: &[Arc<Block>]| args.iter().map(|block| block.bytes).sum();
        queued.map_err(|code| queue.refused_launch(code, &self.name, bytes(&self.args), global))
    }
}
