//! Commands with their OpenCL objects created and their arguments set, ready for submission.

use super::driver::{Code, Event, KernelObject, Mem, Queue};
use crate::backend::{BackendError, KernelId, Launch, nanoseconds_since};
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

/// A kernel object with its operands set, and the parameters that it holds.
#[derive(Debug)]
pub(super) struct Armed {
    pub(super) object: KernelObject,
    /// Bytes of the parameter struct in the kernel object now; empty before the first submission.
    pub(super) held: Vec<u8>,
}

/// Some of the work-groups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupRange {
    pub(super) axis: usize,
    /// The first work-group on that axis.
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A command of a recording, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) step: usize,
    pub(super) part: Option<GroupRange>,
}

/// A dispatch with its own kernel object, because a kernel object holds the argument values.
#[derive(Debug)]
pub(super) struct PreparedDispatch {
    pub(super) kernel: KernelId,
    pub(super) whole: Armed,
    /// The same kernel, compiled so that a part of its work-groups can run.
    pub(super) in_parts: Option<Armed>,
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
    /// Queues the command or a part of it. Returns its event if `timed` and there is something to
    /// run.
    pub(super) fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        part: Option<GroupRange>,
        timed: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        match self {
            Self::Dispatch(dispatch) => dispatch.enqueue(queue, launch, part, timed, time),
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

    /// The error for a failure of this command on the device.
    pub(super) fn failed(&self, code: Code) -> BackendError {
        code.while_waiting(match self {
            Self::Dispatch(dispatch) => return dispatch.failed(code),
            Self::Copy { src, dst, .. } => format!("copy from buffer {} to {}", src.0.label, dst.0.label),
            Self::Fill { dst, .. } => format!("fill of buffer {}", dst.0.label),
        })
    }
}

/// A dispatch in the form that the driver takes.
pub(super) struct Ready<'a> {
    pub(super) kernel: &'a KernelObject,
    pub(super) offset: [usize; 3],
    pub(super) global: [usize; 3],
    pub(super) local: [usize; 3],
}

impl PreparedDispatch {
    fn refused(&self, why: String) -> BackendError {
        BackendError::Driver {
            call: format!("kernel {}", self.name),
            why,
        }
    }

    /// The error for a failure on the device.
    pub(super) fn failed(&self, code: Code) -> BackendError {
        code.while_waiting(format!("kernel {}", self.name))
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
        part: Option<GroupRange>,
        time: &mut DriverTime,
    ) -> Result<Option<Ready<'_>>, BackendError> {
        self.ready_by(launch, part, part.is_some(), time)
    }

    /// Like [`PreparedDispatch::ready`], for the kernel for parts, or for the plain kernel if
    /// `in_parts` is `None`; a part must then begin at the first work-group.
    fn ready_by(
        &mut self,
        launch: &Launch,
        part: Option<GroupRange>,
        in_parts: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Ready<'_>>, BackendError> {
        let mut grid = self.grid(launch)?;
        let mut first = [0; 3];
        if grid.contains(&0) {
            return Ok(None);
        }
        let params = self.values(launch)?;
        if let Some(part) = part
            && let (Some(count), Some(start)) = (grid.get_mut(part.axis), first.get_mut(part.axis))
        {
            (*count, *start) = (part.count, part.first);
        }
        let (offset, global) = (self.global(first)?, self.global(grid)?);
        let armed = match &mut self.in_parts {
            Some(armed) if in_parts => armed,
            _ => &mut self.whole,
        };
        if armed.held != params {
            time.of(|| armed.object.set_bytes(self.params_index, params))
                .map_err(|code| code.at(format!("clSetKernelArg of kernel {}", self.name)))?;
            armed.held.clear();
            armed.held.extend_from_slice(params);
        }
        Ok(Some(Ready {
            kernel: &armed.object,
            offset,
            global,
            local: [self.workgroup as usize, 1, 1],
        }))
    }

    pub(super) fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        part: Option<GroupRange>,
        timed: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        self.enqueue_by(queue, launch, (part, part.is_some()), timed, time)
    }

    /// Queues the first `count` work-groups along `axis` with the plain kernel, which must not
    /// query their number.
    pub(super) fn enqueue_first(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        (axis, count): (usize, u32),
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        let part = GroupRange {
            axis,
            first: 0,
            count,
        };
        self.enqueue_by(queue, launch, (Some(part), false), true, time)
    }

    fn enqueue_by(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        (part, in_parts): (Option<GroupRange>, bool),
        timed: bool,
        time: &mut DriverTime,
    ) -> Result<Option<Event>, BackendError> {
        let Some(ready) = self.ready_by(launch, part, in_parts, time)? else {
            return Ok(None);
        };
        let queued = time.of(|| queue.dispatch(ready.kernel, ready.offset, ready.global, ready.local, timed));
        let global = ready.global;
        let bytes = |args: &[Arc<Block>]| args.iter().map(|block| block.bytes).sum();
        queued.map_err(|code| queue.refused_launch(code, &self.name, bytes(&self.args), global))
    }
}
