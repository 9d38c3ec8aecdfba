//! The page, which the sources in `web/` are built to.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    content: &'static [u8],
}

macro_rules! files {
    ($($path:literal $name:literal $kind:literal,)*) => {
        [$(File {
            path: $path,
            kind: $kind,
            content: include_bytes!(concat!("../../page/", $name)),
        }),*]
    };
}

const FILES: [File; 8] = files![
    "/" "index.html" "text/html; charset=utf-8",
    "/app.js" "app.js" "text/javascript; charset=utf-8",
    "/app.css" "app.css" "text/css; charset=utf-8",
    "/highlight.js" "highlight.js" "text/javascript; charset=utf-8",
    "/report.js" "report.js" "text/javascript; charset=utf-8",
    "/report.css" "report.css" "text/css; charset=utf-8",
    "/icon.svg" "icon.svg" "image/svg+xml",
    "/NOTICES" "NOTICES" "text/plain; charset=utf-8",
];

/// What the page may do: nothing that comes from elsewhere.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; style-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Whether `path` is a file of the page, for which no key is needed.
pub(super) fn is_file(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// The routes of the page.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let mut hasher = DefaultHasher::new();
        file.content.hash(&mut hasher);
        let tag = hasher.finish();
        router.route(
            file.path,
            get(move |headers: HeaderMap| async move { file.respond(tag, &headers) }),
        )
    })
}

impl File {
    /// The file, unless the client has the one with this tag.
    fn respond(&self, tag: u64, headers: &HeaderMap) -> Response {
        let tag = format!("\"{tag:016x}\"");
        let known = headers.get(header::IF_NONE_MATCH);
        let mut response = match known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => self.content.into_response(),
        };
        let out = response.headers_mut();
        out.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        out.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        out.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            out.insert(header::ETAG, tag);
        }
        response
    }
}
