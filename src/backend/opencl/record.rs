//! Recordings: commands with their OpenCL objects made and their arguments set, ready for submission.

use super::driver::{Code, Event, KernelObject, Mem, Queue};
use crate::backend::{BackendError, Launch};
use std::ops::Range;
use std::sync::Arc;

/// A buffer or sub-buffer with what an error needs to know about it. Shared with the recordings that use it, so
/// that the driver's object lives as long as a kernel object that refers to it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) mem: Mem,
    pub(super) label: Arc<str>,
    pub(super) bytes: u64,
}

impl Block {
    /// The error for a failure of `call` on this memory, which the driver may allocate as late as that.
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

/// A dispatch with its own kernel object, because a kernel object holds the argument values.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) object: KernelObject,
    /// Kernel and defines, for errors.
    pub(super) name: Arc<str>,
    pub(super) workgroup: u32,
    /// Index of the parameter struct among the kernel's arguments.
    pub(super) params_index: u32,
    /// Where the parameter struct lies in [`Launch::params`].
    pub(super) params: Range<usize>,
    /// Bytes that the kernel object holds now; empty before the first submission.
    pub(super) held: Vec<u8>,
    pub(super) step: usize,
    /// Memory that the kernel object refers to.
    pub(super) args: Vec<Arc<Block>>,
}

/// One command.
#[derive(Debug)]
pub(super) enum Step {
    Dispatch(Dispatch),
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
    /// Queues the command. Its event, when `timed` and there is something to run.
    pub(super) fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        timed: bool,
    ) -> Result<Option<Event>, BackendError> {
        match self {
            Self::Dispatch(dispatch) => dispatch.enqueue(queue, launch, timed),
            Self::Copy { bytes: 0, .. } | Self::Fill { bytes: 0, .. } => Ok(None),
            Self::Copy { src, dst, bytes } => queue
                .copy((&src.0.mem, src.1), (&dst.0.mem, dst.1), *bytes, timed)
                .map_err(|code| dst.0.error("clEnqueueCopyBuffer", code)),
            Self::Fill { dst, bytes, byte } => queue
                .fill(&dst.0.mem, dst.1, *bytes, *byte, timed)
                .map_err(|code| dst.0.error("clEnqueueFillBuffer", code)),
        }
    }

    /// The error for a failure of this command on the device.
    pub(super) fn failed(&self, code: Code) -> BackendError {
        code.while_waiting(match self {
            Self::Dispatch(dispatch) => format!("kernel {}", dispatch.name),
            Self::Copy { src, dst, .. } => format!("copy from buffer {} to {}", src.0.label, dst.0.label),
            Self::Fill { dst, .. } => format!("fill of buffer {}", dst.0.label),
        })
    }
}

impl Dispatch {
    fn enqueue(
        &mut self,
        queue: &Queue,
        launch: &Launch,
        timed: bool,
    ) -> Result<Option<Event>, BackendError> {
        let refused = |name: &str, why: String| BackendError::Driver {
            call: format!("kernel {name}"),
            why,
        };
        let grid = launch.grids.get(self.step).ok_or_else(|| {
            refused(
                &self.name,
                format!(
                    "grid {} asked for, the launch has {}",
                    self.step,
                    launch.grids.len()
                ),
            )
        })?;
        if grid.contains(&0) {
            return Ok(None);
        }
        let params = launch.params.get(self.params.clone()).ok_or_else(|| {
            refused(
                &self.name,
                format!(
                    "parameters at {:?} asked for, the launch has {} bytes",
                    self.params,
                    launch.params.len()
                ),
            )
        })?;
        if self.held != params {
            self.object
                .set_bytes(self.params_index, params)
                .map_err(|code| code.at(format!("clSetKernelArg of kernel {}", self.name)))?;
            self.held.clear();
            self.held.extend_from_slice(params);
        }
        let [x, y, z] = grid.map(|n| n as usize);
        let local = self.workgroup as usize;
        let x = x.checked_mul(local).ok_or_else(|| {
            refused(
                &self.name,
                format!("{x} work-groups of {local} are more than a size can hold"),
            )
        })?;
        queue
            .dispatch(&self.object, [x, y, z], [local, 1, 1], timed)
            .map_err(|code| {
                if code.is_out_of_memory() {
                    BackendError::OutOfMemory {
                        label: format!("operands of kernel {}", self.name),
                        bytes: self.args.iter().map(|block| block.bytes).sum(),
                        why: format!("clEnqueueNDRangeKernel: {code}"),
                    }
                } else {
                    code.at(format!(
                        "clEnqueueNDRangeKernel of kernel {} over {grid:?}",
                        self.name
                    ))
                }
            })
    }
}
