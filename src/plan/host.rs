//! Nodes that run on the host: those without a kernel, and those whose results' sizes only data tells.

use crate::graph::{Op, Part};
use crate::shape::{Shape, Symbol};
use crate::tensor::{DType, HostTensor};
use std::sync::Arc;

/// An operand of a step on the host.
#[derive(Clone, Debug)]
pub enum HostRead {
    /// A constant.
    Const(Arc<HostTensor>),
    /// Integers that derivation knows as expressions.
    Dims {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Shape,
        /// Elements, row-major, by index into the plan's expressions.
        elements: Vec<usize>,
    },
    /// A value that the caller or an earlier step left on the host.
    Host(usize),
    /// A value that is read back from the device.
    Device(super::Port),
}

/// A result of a step on the host.
#[derive(Clone, Debug)]
pub struct HostWrite {
    /// The result; its place on the device is where it is uploaded to, if a kernel reads it.
    pub port: super::Port,
    /// Symbols that this result defines.
    pub defines: Vec<(Symbol, Part)>,
}

/// A node on the host.
#[derive(Clone, Debug)]
pub struct HostStep {
    /// The operator. `None` reads its one operand back only for the symbols that it defines.
    pub op: Option<Box<dyn Op>>,
    /// Name of the node.
    pub name: String,
    /// Names of the model's nodes that it computes.
    pub nodes: Vec<String>,
    /// Why it runs here.
    pub why: String,
    /// Operands; `None` where an optional one is left out.
    pub reads: Vec<Option<HostRead>>,
    /// Results. For a step without an operator, its operand.
    pub writes: Vec<HostWrite>,
}

impl HostStep {
    /// The values that it reads from and writes to the device.
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
        let uploads = |w: &&HostWrite| self.op.is_some() && w.port.place.is_some();
        self.writes.iter().filter(uploads).count()
    }
}

/// Sizes or elements that a host value has as numbers, by symbol; `None` where it has no such part.
pub(crate) fn part(tensor: &HostTensor, part: Part) -> Option<i64> {
    match part {
        Part::Element(i) => tensor.to_i64().ok()?.get(i).copied(),
        Part::Size(axis) => i64::try_from(*tensor.shape().get(axis)?).ok(),
    }
}
