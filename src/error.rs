//! Errors with their place: stage, file or node, and what was expected and found.
#![warn(missing_docs)]

use crate::backend::BackendError;
use crate::fmt::shown;
use crate::graph::op::OpError;
use crate::num::OutOfRange;
use crate::quota::Exceeded;
use crate::tensor::TensorError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The stage in which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a model file.
    Import,
    /// Downloading a model.
    Download,
    /// Converting from another format.
    Convert,
    /// Shape inference.
    Shape,
    /// A graph pass.
    Pass,
    /// Quantization.
    Quantize,
    /// Converting quantized weights back to floats.
    Dequantize,
    /// Planning for a device.
    Plan,
    /// Execution.
    Run,
    /// Tokenizing, chat templates, sampling.
    Text,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Import => "import",
            Self::Download => "download",
            Self::Convert => "convert",
            Self::Shape => "shape",
            Self::Pass => "pass",
            Self::Quantize => "quantize",
            Self::Dequantize => "dequantize",
            Self::Plan => "plan",
            Self::Run => "run",
            Self::Text => "text",
        })
    }
}

/// Kind of failure of an [`Error`], for programs; see [`Error::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or an option field has an invalid value.
    Usage,
    /// A prompt or conversation has more tokens than the context holds.
    ContextExceeded,
    /// The model has no chat template, so it cannot answer a conversation.
    NoTemplate,
    /// The chat template rejected the messages. The cause is [`Raised`](crate::results::Raised) if
    /// the template gave a message.
    TemplateRefused,
    /// A token ID is outside the model's vocabulary.
    TokenOutOfRange,
    /// The prompt cache file is damaged or is not a prompt cache.
    PromptCacheDamaged,
    /// The prompt cache was written by another model or with another KV cache type.
    PromptCacheMismatch,
    /// No driver was found, or no device has the given name.
    NoDevice,
    /// A device or the host ran out of memory.
    OutOfMemory,
    /// A model or a file exceeds one of the [`Limits`](crate::Limits).
    LimitExceeded,
    /// The device was lost; nothing on it can be used again.
    DeviceLost,
    /// The operating system refused an operation on a file.
    Io,
    /// A file's content is not valid for its format.
    InvalidFile,
    /// Valid, but not implemented: an operator, a tensor type, an architecture.
    Unsupported,
    /// Sizes or element types do not fit one another, or the model's.
    ShapeMismatch,
    /// An input, the size of an open dimension or the elements of a weight are not given.
    MissingInput,
    /// A model computed values that are NaN or infinite, where finite ones are needed.
    NotFinite,
    /// Another call or process is using the session, file or folder, or a queue is full.
    Busy,
    /// The work was interrupted.
    Interrupted,
    /// A bug in this library.
    Internal,
    /// Anything else.
    Other,
}

/// A cause of any type, as returned by [`std::error::Error::source`].
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Any failure in this library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on a file.
    #[error("{action} {}", path.display())]
    Io {
        /// What was attempted: `cannot read`, `cannot write`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A file's content is not what its format demands.
    #[error("{}{}: {what}", Before(*stage), path.display())]
    File {
        /// Stage.
        stage: Stage,
        /// The file.
        path: PathBuf,
        /// Expected and found.
        what: String,
        /// [`ErrorKind::InvalidFile`], or a more specific kind.
        kind: ErrorKind,
        /// The parser's error, if any.
        source: Option<Cause>,
    },
    /// An operator failed.
    #[error("{stage}: {} \"{}\": {source}{}", shown(op), shown(node), Inputs(inputs))]
    Node {
        /// Stage.
        stage: Stage,
        /// Operator type.
        op: String,
        /// Node name.
        node: String,
        /// Types and shapes of the node's inputs as text; may be empty.
        inputs: String,
        /// The operator's error.
        source: Cause,
    },
    /// A device call failed.
    #[error("{stage}: {what}")]
    Device {
        /// Stage.
        stage: Stage,
        /// The names of step, kernel and node, or what was being set up.
        what: String,
        /// The backend's error.
        source: Box<BackendError>,
    },
    /// An option or argument has an invalid value.
    #[error("{name}: {what}")]
    Usage {
        /// The argument or option field, as named in the library; in the command, the option as
        /// typed.
        name: String,
        /// What is wrong, and what is expected.
        what: String,
        /// [`ErrorKind::Usage`], or a more specific kind.
        kind: ErrorKind,
    },
    /// Ctrl-C ended the work; partial results are still delivered.
    #[error("interrupted")]
    Interrupted,
    /// Any other failure, with its own message.
    #[error("{}{what}", Before(*stage))]
    Other {
        /// Stage.
        stage: Stage,
        /// The message.
        what: String,
        /// [`ErrorKind::Other`], or a more specific kind.
        kind: ErrorKind,
        /// The cause, if any.
        source: Option<Cause>,
    },
}

/// A stage as a message prefix. [`Stage::Text`] has none: those messages name files and tokens.
struct Before(Stage);

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Stage::Text => Ok(()),
            stage => write!(f, "{stage}: "),
        }
    }
}

struct Inputs<'a>(&'a str);

impl fmt::Display for Inputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, "\n  inputs: {}", self.0)
        }
    }
}

impl Error {
    /// The message and those of its causes, without causes that the previous message already
    /// quotes.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.to_string()];
        let mut last = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(e) = cause {
            let line = e.to_string();
            if !last.contains(&line) {
                lines.push(line.clone());
            }
            last = line;
            cause = e.source();
        }
        lines
    }

    /// The message and its causes on one line.
    pub fn chain(&self) -> String {
        self.lines().join(": ")
    }

    /// An I/O failure on `path`.
    pub fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Invalid content of `path`.
    pub fn file(stage: Stage, path: &Path, what: impl Into<String>) -> Self {
        Self::File {
            stage,
            path: path.to_owned(),
            what: what.into(),
            kind: ErrorKind::InvalidFile,
            source: None,
        }
    }

    /// Invalid content of `path`, with the parser's error.
    pub fn parse(stage: Stage, path: &Path, what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::File {
            stage,
            path: path.to_owned(),
            what: what.into(),
            kind: ErrorKind::InvalidFile,
            source: Some(source.into()),
        }
    }

    /// Content of `path` that ends early: the file should have at least `needs` bytes and has
    /// `has`.
    pub fn cut_off(stage: Stage, path: &Path, needs: u64, has: u64) -> Self {
        let what = format!(
            "the file is cut off or damaged (needs at least {needs} bytes, has {has}); download it again"
        );
        Self::file(stage, path, what)
    }

    /// Content of `path` that contradicts its format; `what` says how.
    pub fn damaged(stage: Stage, path: &Path, what: impl fmt::Display) -> Self {
        Self::file(
            stage,
            path,
            format!("the file is damaged ({what}); download it again"),
        )
    }

    /// A failure with its own message.
    pub fn other(stage: Stage, what: impl Into<String>) -> Self {
        Self::Other {
            stage,
            what: what.into(),
            kind: ErrorKind::Other,
            source: None,
        }
    }

    /// A state that this library should never reach; `what` describes it.
    pub fn internal(stage: Stage, what: impl fmt::Display) -> Self {
        let what = format!("{what} (a bug in this library; please report it with the model's name)");
        Self::other(stage, what).of_kind(ErrorKind::Internal)
    }

    /// A call that must end, because of a limit or because it was cancelled.
    pub fn exceeded(stage: Stage, e: Exceeded) -> Self {
        Self::other(stage, e.to_string()).of_kind(kind_of_exceeded(e))
    }

    /// A failure with its own message and a cause.
    pub fn caused(stage: Stage, what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Other {
            stage,
            what: what.into(),
            kind: ErrorKind::Other,
            source: Some(source.into()),
        }
    }

    /// A failed device call; `what` describes the attempted work.
    pub fn device(stage: Stage, what: impl Into<String>, source: BackendError) -> Self {
        Self::Device {
            stage,
            what: what.into(),
            source: Box::new(source),
        }
    }

    /// The backend's error, if a device call failed.
    pub fn backend(&self) -> Option<&BackendError> {
        match self {
            Self::Device { source, .. } => Some(source),
            _ => None,
        }
    }

    /// An invalid value of the argument or option field `name`.
    pub fn usage(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Usage {
            name: name.into(),
            what: what.into(),
            kind: ErrorKind::Usage,
        }
    }

    /// Replaces the kind by a more specific one. Variants without a `kind` field stay unchanged.
    #[must_use]
    pub fn of_kind(mut self, better: ErrorKind) -> Self {
        if let Self::File { kind, .. } | Self::Usage { kind, .. } | Self::Other { kind, .. } = &mut self {
            *kind = better;
        }
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            Self::File { kind, .. } | Self::Usage { kind, .. } | Self::Other { kind, .. } => *kind,
            Self::Device { source, .. } => kind_of_device(source),
            Self::Node { source, .. } => kind_of_cause(source.as_ref()),
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    /// True if the caller asked for something impossible; the command then exits with code 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage { .. })
    }
}

impl From<OutOfRange> for Error {
    /// A wrong number or range in a run.
    fn from(e: OutOfRange) -> Self {
        Self::internal(Stage::Run, e)
    }
}

/// The kind of a node's error.
fn kind_of_cause(cause: &(dyn std::error::Error + Send + Sync + 'static)) -> ErrorKind {
    if let Some(e) = cause.downcast_ref() {
        return kind_of_device(e);
    }
    cause.downcast_ref().map_or(ErrorKind::Other, kind_of_op)
}

/// The kind of an operator's error.
pub(crate) fn kind_of_op(e: &OpError) -> ErrorKind {
    match e {
        OpError::Mismatch { .. } => ErrorKind::ShapeMismatch,
        OpError::Unsupported(_) | OpError::NoKernel(_) => ErrorKind::Unsupported,
        OpError::Body(_, kind) => *kind,
        OpError::Tensor(e) => kind_of_tensor(e),
        OpError::Internal(_) => ErrorKind::Internal,
        OpError::Expected { .. } | OpError::Dim(_) => ErrorKind::Other,
    }
}

fn kind_of_tensor(e: &TensorError) -> ErrorKind {
    match e {
        TensorError::Absent(_) => ErrorKind::MissingInput,
        TensorError::OutOfMemory(_) => ErrorKind::OutOfMemory,
        TensorError::TooLarge(_) => ErrorKind::LimitExceeded,
        TensorError::Exceeded(e) => kind_of_exceeded(*e),
        TensorError::Length { .. } | TensorError::Type { .. } | TensorError::TooHigh(_) => ErrorKind::Other,
    }
}

fn kind_of_exceeded(e: Exceeded) -> ErrorKind {
    match e {
        Exceeded::Cancelled => ErrorKind::Interrupted,
        Exceeded::Memory { .. } | Exceeded::Time(_) | Exceeded::Iterations(_) => ErrorKind::LimitExceeded,
    }
}

fn kind_of_device(e: &BackendError) -> ErrorKind {
    match e {
        BackendError::NoDriver { .. } | BackendError::NoDevice { .. } | BackendError::FewDevices { .. } => {
            ErrorKind::NoDevice
        }
        BackendError::ManyDevices { .. } | BackendError::NotOffered { .. } => ErrorKind::Usage,
        BackendError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        BackendError::Exceeded(e) => kind_of_exceeded(*e),
        BackendError::Lost(_) => ErrorKind::DeviceLost,
        BackendError::Internal(_) | BackendError::Fault { .. } => ErrorKind::Internal,
        BackendError::Build { .. }
        | BackendError::Unsuited { .. }
        | BackendError::Launch { .. }
        | BackendError::Driver { .. }
        | BackendError::Wrong { .. } => ErrorKind::Other,
    }
}

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let path = Path::new("x");
        let full = || BackendError::OutOfMemory {
            label: "kv".to_owned(),
            bytes: 1,
            why: "limit".to_owned(),
        };
        let node = |source: Cause| Error::Node {
            stage: Stage::Run,
            op: "Add".to_owned(),
            node: "a".to_owned(),
            inputs: String::new(),
            source,
        };
        let io = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let lost = BackendError::Lost("gone".to_owned());
        for (error, kind) in [
            (Error::usage("top_p", "is 2"), ErrorKind::Usage),
            (Error::io("cannot read", path, io()), ErrorKind::Io),
            (Error::file(Stage::Import, path, "short"), ErrorKind::InvalidFile),
            (Error::other(Stage::Run, "no"), ErrorKind::Other),
            (
                Error::internal(Stage::Run, "a step is missing"),
                ErrorKind::Internal,
            ),
            (Error::device(Stage::Run, "a step", lost), ErrorKind::DeviceLost),
            (
                Error::device(Stage::Run, "a step", full()),
                ErrorKind::OutOfMemory,
            ),
            (node(full().into()), ErrorKind::OutOfMemory),
            (node("words".into()), ErrorKind::Other),
            (
                node(OpError::mismatch("sizes", 2, 3).into()),
                ErrorKind::ShapeMismatch,
            ),
            (
                node(OpError::Unsupported("f64".to_owned()).into()),
                ErrorKind::Unsupported,
            ),
            (
                node(OpError::expected("axis", "below 2", 5).into()),
                ErrorKind::Other,
            ),
            (Error::Interrupted, ErrorKind::Interrupted),
            (
                Error::Interrupted.of_kind(ErrorKind::Usage),
                ErrorKind::Interrupted,
            ),
        ] {
            assert_eq!(error.kind(), kind, "{error}");
        }
        for error in [
            Error::usage("prompt", "is long"),
            Error::file(Stage::Text, path, "is long"),
            Error::caused(Stage::Text, "is long", io()),
        ] {
            let words = error.to_string();
            let error = error.of_kind(ErrorKind::ContextExceeded);
            assert_eq!(
                (error.kind(), error.to_string()),
                (ErrorKind::ContextExceeded, words)
            );
        }
    }
}
