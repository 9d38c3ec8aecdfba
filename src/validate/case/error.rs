//! Failures of cases.

use crate::backend::BackendError;
use crate::backend::kernel::KernelSpec;
use crate::error::{Error, ErrorKind, Stage};
use crate::num::OutOfRange;

/// How a scenario fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Kernels write wrong values, or write to the wrong place.
    Wrong,
    /// A kernel does not build, or needs more than the device has.
    Build,
    /// A kernel is refused at launch.
    Launch,
    /// The device is lost.
    Lost,
    /// Anything that is not the fault of a kernel: out of memory, a driver error, an operator that
    /// cannot be planned.
    Other,
}

/// A failure of a scenario on a device.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct CaseError {
    /// How it fails.
    pub fault: Fault,
    /// What differs and by how much, or why the scenario could not run.
    pub why: String,
    /// Kernels of the failing plan, if known.
    pub kernels: Vec<KernelSpec>,
}

impl CaseError {
    /// An error of kernels.
    pub(super) fn wrong(why: impl Into<String>) -> Self {
        Self {
            fault: Fault::Wrong,
            why: why.into(),
            kernels: Vec::new(),
        }
    }
}

impl From<String> for CaseError {
    fn from(why: String) -> Self {
        Self {
            fault: Fault::Other,
            why,
            kernels: Vec::new(),
        }
    }
}

impl From<Error> for CaseError {
    fn from(e: Error) -> Self {
        let fault = match e.backend() {
            Some(BackendError::Build { .. } | BackendError::Unsuited { .. }) => Fault::Build,
            Some(BackendError::Launch { .. }) => Fault::Launch,
            _ if e.kind() == ErrorKind::DeviceLost => Fault::Lost,
            _ => Fault::Other,
        };
        Self {
            fault,
            ..e.chain().into()
        }
    }
}

impl From<BackendError> for CaseError {
    fn from(e: BackendError) -> Self {
        Error::device(Stage::Run, "a case", e).into()
    }
}

impl From<OutOfRange> for CaseError {
    fn from(e: OutOfRange) -> Self {
        e.to_string().into()
    }
}
