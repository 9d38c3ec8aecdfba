//! Errors with their place: stage, file, node, and what was expected and found.

use crate::backend::BackendError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The part of the work in which an error arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a model file.
    Import,
    /// Downloading a model.
    Download,
    /// Converting from another format.
    Convert,
    /// Derivation of shapes.
    Shape,
    /// A graph pass.
    Pass,
    /// Quantization.
    Quantize,
    /// From quantized weights back to floats.
    Dequantize,
    /// Planning for a device.
    Plan,
    /// Execution.
    Run,
    /// Tokens, templates, sampling.
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

/// What kind of failure an [`Error`] is, for programs that act on it. [`Error::kind`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or the field of an option has a value that cannot be used.
    Usage,
    /// A prompt or conversation has more tokens than the context holds.
    ContextExceeded,
    /// A conversation for a model that has no chat template.
    NoTemplate,
    /// The chat template refuses the messages; the cause is [`Raised`](crate::llm::Raised) where it has words for it.
    TemplateRefused,
    /// A token that the model does not have.
    TokenOutOfRange,
    /// The file of a prompt cache is damaged, or is none.
    PromptCacheDamaged,
    /// A prompt cache is that of another model, or of another storage of the cache.
    PromptCacheMismatch,
    /// No driver, or no device of that name.
    NoDevice,
    /// A device or the host has too little memory.
    OutOfMemory,
    /// The device is gone; nothing on it can be used again.
    DeviceLost,
    /// The operating system refused an operation on a file.
    Io,
    /// A file's content is not what its format demands.
    InvalidFile,
    /// The work was interrupted.
    Interrupted,
    /// Anything else.
    Other,
}

/// A cause of any type, as [`std::error::Error::source`] returns it.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Any failure of this library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on a file.
    #[error("{action} {}", path.display())]
    Io {
        /// What was tried: `cannot read`, `cannot write`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
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
        /// [`ErrorKind::InvalidFile`], or what is known better.
        kind: ErrorKind,
        /// The parser's words, if any.
        source: Option<Cause>,
    },
    /// An operator failed.
    #[error("{stage}: {op} \"{node}\": {source}{}", Inputs(inputs))]
    Node {
        /// Stage.
        stage: Stage,
        /// Operator type.
        op: String,
        /// Node name.
        node: String,
        /// Facts of the node's inputs as text; may be empty.
        inputs: String,
        /// The operator's error.
        source: Cause,
    },
    /// A device refused.
    #[error("{stage}: {what}")]
    Device {
        /// Stage.
        stage: Stage,
        /// Step, kernel and node names; or what was being set up.
        what: String,
        /// The backend's error.
        source: BackendError,
    },
    /// An option or argument has a value that cannot be used.
    #[error("{name}: {what}")]
    Usage {
        /// The argument, or the field of an option as it is called in the library; in the command the option as typed.
        name: String,
        /// What is wrong and what would be right.
        what: String,
        /// [`ErrorKind::Usage`], or what is known better.
        kind: ErrorKind,
    },
    /// Ctrl-C ended the work; what there was of its result is given out.
    #[error("interrupted")]
    Interrupted,
    /// Anything else with a sentence of its own.
    #[error("{}{what}", Before(*stage))]
    Other {
        /// Stage.
        stage: Stage,
        /// The sentence.
        what: String,
        /// [`ErrorKind::Other`], or what is known better.
        kind: ErrorKind,
        /// The cause, if any.
        source: Option<Cause>,
    },
}

/// A stage as it stands before a sentence. Texts need none: what is said of them names files and tokens.
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
    /// The message and those of its causes, without those that the one before already quotes.
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

    /// The message and its causes in one line.
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

    /// Bad content of `path`.
    pub fn file(stage: Stage, path: &Path, what: impl Into<String>) -> Self {
        Self::File {
            stage,
            path: path.to_owned(),
            what: what.into(),
            kind: ErrorKind::InvalidFile,
            source: None,
        }
    }

    /// Bad content of `path`, with the parser's error.
    pub fn parse(stage: Stage, path: &Path, what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::File {
            stage,
            path: path.to_owned(),
            what: what.into(),
            kind: ErrorKind::InvalidFile,
            source: Some(source.into()),
        }
    }

    /// A failure with a sentence of its own.
    pub fn other(stage: Stage, what: impl Into<String>) -> Self {
        Self::Other {
            stage,
            what: what.into(),
            kind: ErrorKind::Other,
            source: None,
        }
    }

    /// A failure with a sentence of its own and a cause.
    pub fn caused(stage: Stage, what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Other {
            stage,
            what: what.into(),
            kind: ErrorKind::Other,
            source: Some(source.into()),
        }
    }

    /// A failed device call; `what` says what was being done.
    pub fn device(stage: Stage, what: impl Into<String>, source: BackendError) -> Self {
        Self::Device {
            stage,
            what: what.into(),
            source,
        }
    }

    /// A bad value of the argument or option field `name`.
    pub fn usage(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Usage {
            name: name.into(),
            what: what.into(),
            kind: ErrorKind::Usage,
        }
    }

    /// The same error, of a kind that is known better than its variant tells. Variants without a kind of their own stay as they are.
    #[must_use]
    pub fn of_kind(mut self, better: ErrorKind) -> Self {
        if let Self::File { kind, .. } | Self::Usage { kind, .. } | Self::Other { kind, .. } = &mut self {
            *kind = better;
        }
        self
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            Self::File { kind, .. } | Self::Usage { kind, .. } | Self::Other { kind, .. } => *kind,
            Self::Device { source, .. } => kind_of_device(source),
            Self::Node { source, .. } => source.downcast_ref().map_or(ErrorKind::Other, kind_of_device),
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    /// True when the caller asked for something impossible, rather than something failing: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage { .. })
    }
}

fn kind_of_device(e: &BackendError) -> ErrorKind {
    match e {
        BackendError::NoDriver { .. } | BackendError::NoDevice { .. } | BackendError::FewDevices { .. } => {
            ErrorKind::NoDevice
        }
        BackendError::ManyDevices { .. } | BackendError::NotOffered { .. } => ErrorKind::Usage,
        BackendError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
        BackendError::Lost(_) => ErrorKind::DeviceLost,
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
            (Error::device(Stage::Run, "a step", lost), ErrorKind::DeviceLost),
            (
                Error::device(Stage::Run, "a step", full()),
                ErrorKind::OutOfMemory,
            ),
            (node(full().into()), ErrorKind::OutOfMemory),
            (node("words".into()), ErrorKind::Other),
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
