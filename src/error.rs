//! Errors with their place: stage, file, node, and what was expected and found.

use std::fmt;
use std::path::{Path, PathBuf};

/// The part of the work in which an error arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading a model file.
    Import,
    /// Converting from another format.
    Convert,
    /// Derivation of shapes.
    Shape,
    /// A graph pass.
    Pass,
    /// Quantization.
    Quantize,
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
            Self::Convert => "convert",
            Self::Shape => "shape",
            Self::Pass => "pass",
            Self::Quantize => "quantize",
            Self::Plan => "plan",
            Self::Run => "run",
            Self::Text => "text",
        })
    }
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
    #[error("{stage}: {}: {what}", path.display())]
    File {
        /// Stage.
        stage: Stage,
        /// The file.
        path: PathBuf,
        /// Expected and found.
        what: String,
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
        source: crate::backend::BackendError,
    },
    /// An option or argument has a value that cannot be used.
    #[error("{option}: {what}")]
    Usage {
        /// The option as typed.
        option: String,
        /// What is wrong and what would be right.
        what: String,
    },
    /// Ctrl-C ended the work; what there was of its result is given out.
    #[error("interrupted")]
    Interrupted,
    /// Anything else with a sentence of its own.
    #[error("{stage}: {what}")]
    Other {
        /// Stage.
        stage: Stage,
        /// The sentence.
        what: String,
        /// The cause, if any.
        source: Option<Cause>,
    },
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
            source: None,
        }
    }

    /// Bad content of `path`, with the parser's error.
    pub fn parse(stage: Stage, path: &Path, what: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::File {
            stage,
            path: path.to_owned(),
            what: what.into(),
            source: Some(source.into()),
        }
    }

    /// A failure with a sentence of its own.
    pub fn other(stage: Stage, what: impl Into<String>) -> Self {
        Self::Other {
            stage,
            what: what.into(),
            source: None,
        }
    }

    /// A failed device call; `what` says what was being done.
    pub fn device(stage: Stage, what: impl Into<String>, source: crate::backend::BackendError) -> Self {
        Self::Device {
            stage,
            what: what.into(),
            source,
        }
    }

    /// A bad option value.
    pub fn usage(option: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Usage {
            option: option.into(),
            what: what.into(),
        }
    }

    /// True when the caller asked for something impossible, rather than something failing: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Usage { .. })
    }
}

/// Result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;
