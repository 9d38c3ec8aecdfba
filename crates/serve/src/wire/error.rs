//! Errors as clients get them.

use serde::Serialize;
use transformer_lite::{Error, ErrorKind};
use utoipa::ToSchema;

/// An error of a request: an HTTP status, and the object `error` of the OpenAI API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// What is wrong.
    pub body: ErrorBody,
}

/// The object `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong, and what is expected.
    pub message: String,
    /// `invalid_request_error`, `authentication_error`, `permission_error`, `not_found_error`,
    /// `overloaded_error` or `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field of the request.
    pub param: Option<String>,
    /// A name for programs, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
}

/// The body of an answer with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// The error.
    pub error: ErrorBody,
}

impl ApiError {
    /// An error without a field and a code.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            400..500 => "invalid_request_error",
            503 => "overloaded_error",
            _ => "server_error",
        };
        let body = ErrorBody {
            message: message.into(),
            kind,
            param: None,
            code: None,
        };
        Self { status, body }
    }

    /// A field that the client must change.
    pub fn field(param: impl Into<String>, what: impl AsRef<str>) -> Self {
        let param = param.into();
        let mut error = Self::new(400, format!("{param}: {}", what.as_ref()));
        error.body.param = Some(param);
        error
    }

    /// With a name for programs.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    /// The error of a model that is not listed.
    pub fn no_model(name: &str, listed: &[String]) -> Self {
        let what = format!("there is no model {name:?}; expected one of {listed:?}");
        let mut error = Self::new(404, format!("model: {what}"));
        error.body.param = Some("model".to_owned());
        error.with_code("model_not_found")
    }
}

impl From<Error> for ApiError {
    /// What the client can change is its fault; the rest is the server's.
    fn from(e: Error) -> Self {
        let status = match e.kind() {
            ErrorKind::Usage
            | ErrorKind::ContextExceeded
            | ErrorKind::NoTemplate
            | ErrorKind::TemplateRefused
            | ErrorKind::TokenOutOfRange
            | ErrorKind::LimitExceeded => 400,
            ErrorKind::Busy
            | ErrorKind::DeviceLost
            | ErrorKind::OutOfMemory
            | ErrorKind::NoDevice
            | ErrorKind::Interrupted => 503,
            _ => 500,
        };
        let mut error = Self::new(status, e.chain());
        if let Error::Usage { name, .. } = &e {
            error.body.param = Some(name.clone());
        }
        error.body.code = match e.kind() {
            ErrorKind::ContextExceeded => Some("context_length_exceeded"),
            ErrorKind::Busy => Some("queue_full"),
            _ => None,
        };
        error
    }
}
