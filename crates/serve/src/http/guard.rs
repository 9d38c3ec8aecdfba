//! Who may send requests.

use super::{ApiError, Server};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// What requests must show.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    pub keys: Vec<String>,
    /// Origins of pages that may send requests.
    pub origins: Vec<String>,
    /// Names under which clients may reach the server; any if it is empty. A page of another site
    /// whose name was made to lead here is refused by it.
    pub hosts: Vec<String>,
}

/// The route beside the page that needs no key.
const OPEN: &str = "/health";

impl Guard {
    fn has_key(&self, headers: &HeaderMap) -> bool {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
        let given = bearer.or_else(|| text("x-api-key")).unwrap_or_default().trim();
        // All keys are compared, so that time tells nothing of them.
        let found = self.keys.iter().fold(subtle::Choice::from(0), |found, key| {
            found | key.as_bytes().ct_eq(given.as_bytes())
        });
        found.into()
    }

    /// True for the name of the machine itself, whatever the port.
    fn is_own(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        self.hosts.is_empty() || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    fn check(&self, request: &Request) -> Result<(), ApiError> {
        let headers = request.headers();
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host
            .or(request.uri().authority().map(|a| a.as_str()))
            .unwrap_or_default();
        if !self.is_own(host) {
            let what = format!(
                "{host:?} is not a name of this server; expected one of {:?}",
                self.hosts
            );
            return Err(ApiError::new(403, what));
        }
        if let Some(origin) = headers.get(header::ORIGIN) {
            let origin = origin.to_str().unwrap_or_default();
            let own = origin
                .split_once("://")
                .is_some_and(|(_, from)| from.eq_ignore_ascii_case(host));
            if !own && !self.origins.iter().any(|allowed| allowed == origin) {
                let what = format!("pages of {origin} may not send requests; --cors ORIGIN allows them");
                return Err(ApiError::new(403, what));
            }
        }
        let path = request.uri().path();
        let is_open = path == OPEN || super::page::is_file(path);
        if !self.keys.is_empty() && !is_open && !self.has_key(headers) {
            let what = "expected a key of this server in the header Authorization: Bearer KEY";
            return Err(ApiError::new(401, what).with_code("invalid_api_key"));
        }
        Ok(())
    }

    /// The origin to name in a response.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        self.origins
            .iter()
            .any(|allowed| allowed.as_bytes() == origin.as_bytes())
            .then(|| origin.clone())
    }
}

/// Lets requests through that may be answered.
pub(super) async fn check(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let guard = &server.guard;
    let origin = guard.allowed(request.headers());
    let asks = request.method() == Method::OPTIONS && origin.is_some();
    let mut response = match guard.check(&request) {
        // A browser asks without the key whether it may send it.
        _ if asks => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => next.run(request).await,
        Err(e) => e.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        if asks {
            let allow = HeaderValue::from_static("authorization, content-type, x-api-key");
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allow);
            headers.insert(
                header::ACCESS_CONTROL_ALLOW_METHODS,
                HeaderValue::from_static("GET, POST"),
            );
        }
    }
    response
}
