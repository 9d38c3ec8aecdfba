//! Sizes at which kernels change, for callers that compile several plans of a graph.

use crate::backend::{Caps, TensorCores};
use crate::graph::op::attention::{FEW_PAGED, UNSPLIT};
use crate::graph::op::matmul_e0m::{NORM_ROWS, ROW_LIMITS};

/// Sizes up to which a device uses other kernels than above, so that separate plans are worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breakpoints {
    /// Rows of a run. `None` without tensor cores: the same kernels then suit all numbers of rows.
    pub rows: [Option<usize>; 5],
    /// Rows up to which matmul kernels normalize them.
    pub norm_rows: i64,
    /// Keys that a single query reads.
    pub keys: i64,
}

impl Breakpoints {
    /// The breakpoints of a device.
    pub fn on(caps: &Caps) -> Self {
        let [eight, sixteen, more, many] = ROW_LIMITS.map(Some);
        let rows = match caps.profile.tensor_cores {
            Some(TensorCores::Ptx) => [eight, sixteen, Some(FEW_PAGED), more, many],
            // Cooperative matrices have 16 rows.
            Some(TensorCores::CooperativeMatrix) => [None, sixteen, Some(FEW_PAGED), more, many],
            None => [None; 5],
        };
        let norm_rows = match caps.profile.tensor_cores {
            Some(TensorCores::Ptx) => NORM_ROWS,
            _ => 1,
        };
        Self {
            norm_rows,
            rows: rows.map(|n| n.and_then(|n| usize::try_from(n).ok())),
            keys: UNSPLIT,
        }
    }
}
