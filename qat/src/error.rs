//! What can fail, with its place.

use std::path::{Path, PathBuf};

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine or a conversion failed.
    #[error("{0}")]
    Engine(#[from] transformer_lite::Error),
    /// A tensor of the engine has other sizes or elements than its user expects.
    #[error(transparent)]
    Tensor(#[from] transformer_lite::unstable::tensor::TensorError),
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// An option has a value that does not fit.
    #[error("{name}: {what}")]
    Option { name: &'static str, what: String },
    /// A node has no gradient here.
    #[error("{}: {op} \"{node}\" cannot be trained: {reason}", path.display())]
    Untrainable {
        path: PathBuf,
        op: String,
        node: String,
        reason: String,
    },
    /// A model does not have the form that training needs.
    #[error("{}: {what}", path.display())]
    Model { path: PathBuf, what: String },
    /// Pictures or labels are not usable.
    #[error("{}: {what}", path.display())]
    Data { path: PathBuf, what: String },
    /// A checkpoint is damaged or of another run.
    #[error("checkpoint {}: {what}", path.display())]
    Checkpoint { path: PathBuf, what: String },
    /// A fault of this program.
    #[error("internal error: {0}; please report it")]
    Internal(String),
    /// A number became NaN or infinite.
    #[error("step {step}: {what} is {found}; try a lower --learning-rate")]
    NotFinite { step: u64, what: String, found: f32 },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A file operation that failed.
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Pictures or labels that are not usable.
    pub fn data(path: &Path, what: impl Into<String>) -> Self {
        Self::Data {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// A model that training cannot use.
    pub fn model(path: &Path, what: impl Into<String>) -> Self {
        Self::Model {
            path: path.to_owned(),
            what: what.into(),
        }
    }

    /// An option with an unusable value.
    pub fn option(name: &'static str, what: impl Into<String>) -> Self {
        Self::Option {
            name,
            what: what.into(),
        }
    }

    /// True if the command line has to change.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Option { .. } => true,
            Self::Engine(e) => e.is_usage(),
            _ => false,
        }
    }
}
