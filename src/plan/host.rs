//! Nodes that run on the host: those without a kernel, and those whose result sizes depend on data.

use crate::graph::{Op, TensorScalar};
use crate::num;
use crate::shape::{Quotient, Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// An operand of a host step.
#[derive(Clone, Debug)]
pub enum HostRead {
    Const(Arc<HostTensor>),
    /// Integers that shape inference knows as expressions, or floats that are quotients of such.
    Dims {
        dtype: DType,
        shape: Shape,
        /// Elements, row-major, at the run's exact lengths.
        elements: Vec<Quotient>,
    },
    /// A value that the caller or an earlier step left on the host.
    Host(usize),
    /// A value that is read back from the device.
    Device(super::Port),
}

/// A result of a host step.
#[derive(Clone, Debug)]
pub struct HostWrite {
    /// The result. If it has a place on the device, it is uploaded there for kernels.
    pub port: super::Port,
    /// Symbols that this result defines.
    pub defines: Vec<(Symbol, TensorScalar)>,
}

/// What a host step does.
#[derive(Clone, Debug)]
pub enum HostWork {
    Op(Box<dyn Op>),
    /// Computes its one operand, known as expressions, as data.
    Known,
    /// Reads its one operand back for the symbols that it defines.
    Observe,
}

impl HostWork {
    /// Name of the operator or action.
    pub fn name(&self) -> &str {
        match self {
            Self::Op(op) => op.name(),
            Self::Known => "known value",
            Self::Observe => "read-back",
        }
    }
}

/// Why a step runs on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostReason {
    /// It runs on a device, and here to check a kernel.
    #[default]
    #[error("")]
    Check,
    /// The size of a result depends on data.
    #[error("the size of its result depends on data")]
    Data,
    /// The arena has no room for a value without a bound.
    #[error("\"{value}\" of shape {shape} has no bound")]
    Unbounded { value: String, shape: Shape },
    /// Devices do not hold elements of this type.
    #[error("no device kernel for elements of type {0}")]
    Type(DType),
    /// No kernel takes the operands.
    #[error("{0}")]
    Kernel(String),
    /// [`HostWork::Known`].
    #[error("its elements follow from the shapes")]
    Known,
    /// [`HostWork::Observe`].
    #[error("sizes depend on its elements")]
    Observed,
}

/// A step on the host.
#[derive(Clone, Debug)]
pub struct HostStep {
    pub work: HostWork,
    /// Name of the node.
    pub name: String,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Why it runs on the host.
    pub why: HostReason,
    /// Operands; `None` for an omitted optional one.
    pub reads: Vec<Option<HostRead>>,
    /// Results. A step without an operator lists its operand here.
    pub writes: Vec<HostWrite>,
}

impl HostStep {
    /// The values that it reads from or writes to the device.
    pub(super) fn ports(&mut self) -> impl Iterator<Item = &mut super::Port> {
        let reads = self.reads.iter_mut().flatten().filter_map(|r| match r {
            HostRead::Device(port) => Some(port),
            _ => None,
        });
        reads.chain(self.writes.iter_mut().map(|w| &mut w.port))
    }

    /// Number of operands that are read back from the device.
    pub fn read_backs(&self) -> usize {
        self.reads
            .iter()
            .flatten()
            .filter(|r| matches!(r, HostRead::Device(_)))
            .count()
    }

    /// Number of results that are uploaded to the device.
    pub fn uploads(&self) -> usize {
        self.writes.iter().filter(|w| self.is_uploaded(w)).count()
    }

    /// Whether a result is uploaded.
    pub fn is_uploaded(&self, write: &HostWrite) -> bool {
        !matches!(self.work, HostWork::Observe) && write.port.storage.is_some()
    }
}

/// The element or size of a host value that `scalar` selects; `None` if it has none.
pub(crate) fn scalar(tensor: &HostTensor, scalar: TensorScalar) -> Option<i64> {
    match scalar {
        TensorScalar::Element(i) => tensor.to_i64().ok()?.get(i).copied(),
        TensorScalar::Size(axis) => tensor.shape().get(axis).copied().map(num::signed),
    }
}
