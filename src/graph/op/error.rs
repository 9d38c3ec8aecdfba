//! Errors of operators.

use crate::error::{Error, ErrorKind};
use crate::num::OutOfRange;
use crate::quota::Exceeded;
use crate::shape::DimError;
use crate::tensor::TensorError;

/// Why an operator cannot be imported, derived, evaluated or lowered. The caller adds the node's
/// name.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// Two things that must agree differ.
    #[error("{what} differ: {left} (left) and {right} (right)")]
    Mismatch {
        /// What was compared, in the plural.
        what: &'static str,
        left: String,
        right: String,
    },
    /// Something does not meet a requirement of the operator.
    #[error("{what}: expected {expected}, found {found}")]
    Expected {
        what: String,
        expected: String,
        found: String,
    },
    /// Valid ONNX that this engine does not support.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// No kernel for these operands; the node can run on the host.
    #[error("no kernel: {0}")]
    NoKernel(String),
    /// An error inside the body of a node, and its kind.
    #[error("{0}")]
    Body(String, ErrorKind),
    /// A shape expression failed.
    #[error(transparent)]
    Dim(#[from] DimError),
    /// A host tensor failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A bug in this library.
    #[error("{0} (a bug in this library; please report it with the model's name)")]
    Internal(#[from] OutOfRange),
}

impl From<Exceeded> for OpError {
    fn from(e: Exceeded) -> Self {
        Self::Tensor(e.into())
    }
}

impl From<Error> for OpError {
    /// An error in the body of a node.
    fn from(e: Error) -> Self {
        Self::Body(e.chain(), e.kind())
    }
}

impl OpError {
    /// Builds [`OpError::Expected`] from displayable parts.
    pub fn expected(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Self {
        Self::Expected {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Builds [`OpError::Mismatch`] from displayable parts.
    pub fn mismatch(what: &'static str, left: impl ToString, right: impl ToString) -> Self {
        Self::Mismatch {
            what,
            left: left.to_string(),
            right: right.to_string(),
        }
    }
}

/// Result of an operator's functions.
pub type OpResult<T> = Result<T, OpError>;
