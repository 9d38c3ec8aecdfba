//! Requests to the hub.

use super::super::digest::is_sha256;
use super::super::{Event, OnEvent};
use super::address::{authority, escaped, host, joined};
use super::choose::{self, Choice};
use super::store::{Partial, unwritable};
use super::{ATTEMPTS, Fetched, Hub, HubError, PAUSE, REVISION, Repo, Spec, has_tokenizer, is_file_name};
use crate::checkpoint::folder::{INDEX, supported};
use crate::checkpoint::tokenizer::MISSING;
use crate::gguf::split::PartName;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::read::{MAX_TEXT_FILE, read_config, read_given};
use ureq::http::{HeaderMap, Method, Request, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, Proxy};

const USER_AGENT: &str = concat!("tlite/", env!("CARGO_PKG_VERSION"));
/// Redirects that are followed.
const REDIRECTS: usize = 10;
/// The longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Requests that find no connection, before the network counts as one that is not there.
const CONNECT_ATTEMPTS: u32 = 2;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a server may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that are read at once.
const BLOCK: usize = 1 << 18;
/// Bytes of a list of files at most.
const MAX_LIST: u64 = 32 << 20;
/// Variables that name a proxy, in the order in which `ureq` reads them.
const PROXIES: [&str; 6] = [
    "ALL_PROXY",
    "all_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
];

/// What headers tell of a file, from all answers on the way to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Meta {
    etag: Option<String>,
    commit: Option<String>,
    size: Option<u64>,
}

impl Meta {
    /// Adds what `headers` tell; those of an answer that is no redirection are its own.
    fn add(&mut self, headers: &HeaderMap, last: bool) {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let linked = text("x-linked-etag");
        let etag = linked.or_else(|| text("etag").filter(|_| last));
        let plain = |e: String| e.trim_start_matches("W/").trim_matches('"').to_owned();
        self.etag = self.etag.take().or_else(|| etag.map(plain));
        self.commit = self.commit.take().or_else(|| text("x-repo-commit"));
        let size = text("x-linked-size").or_else(|| text("content-length").filter(|_| last));
        self.size = self.size.or_else(|| size?.parse().ok());
    }
}

/// The list of files of a repository.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// An index of a checkpoint's files.
#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

/// A file in the cache that is up to date.
struct Got {
    path: PathBuf,
    /// The version that it is of.
    commit: String,
    /// Its SHA-256 as the hub names it.
    claimed: Option<String>,
    /// It was downloaded and verified just now.
    verified: bool,
}

/// Why a transfer ended before its time.
enum Stopped {
    /// Another attempt may help.
    Broken(String),
    Failed(Box<Error>),
}

impl From<Error> for Stopped {
    fn from(e: Error) -> Self {
        Self::Failed(Box::new(e))
    }
}

/// Requests about one repository.
struct Client<'a> {
    hub: &'a Hub,
    agent: Agent,
    /// A proxy is in use.
    proxy: bool,
    spec: &'a Spec,
}

impl Hub {
    /// The present version of a model's files; those that are in the cache are not downloaded.
    /// Without a connection the files in the cache are used, if all are there.
    pub(super) fn download(&self, spec: &Spec, on_event: OnEvent<'_>) -> Result<Fetched> {
        let client = Client::new(self, spec)?;
        let fetched = match spec.file() {
            Some(file) => client.file(file, REVISION, on_event),
            None => client.choose(on_event),
        };
        let unreachable = |e: &Error| {
            let cause = std::error::Error::source(e).and_then(|e| e.downcast_ref());
            matches!(cause, Some(HubError::Unreachable { .. }))
        };
        match fetched {
            Err(e) if unreachable(&e) => match self.find_cached(spec)? {
                Some(found) => {
                    on_event(Event::Offline { why: &e.to_string() });
                    Ok(found)
                }
                None => Err(e),
            },
            fetched => fetched,
        }
    }
}

impl<'a> Client<'a> {
    /// Usage errors: a variable with a proxy or certificates that cannot be used.
    fn new(hub: &'a Hub, spec: &'a Spec) -> Result<Self> {
        for name in PROXIES {
            if let Some(value) = super::variable(name)
                && Proxy::new(&value).is_err()
            {
                let what = "is not a valid proxy address; expected http://HOST:PORT or socks5://HOST:PORT";
                return Err(Error::usage(name, what));
            }
        }
        let proxy = Proxy::try_from_env();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .user_agent(USER_AGENT)
            .proxy(proxy.clone());
        if let Some(roots) = certificates()? {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        Ok(Self {
            hub,
            agent: config.build().into(),
            proxy: proxy.is_some(),
            spec,
        })
    }

    fn repo(&self) -> Repo {
        self.hub.cache.repo(self.spec.repo())
    }

    fn host(&self) -> String {
        host(&self.hub.endpoint).to_owned()
    }

    fn unexpected(&self, what: impl Into<String>) -> Error {
        let (host, what) = (self.host(), what.into());
        HubError::Unexpected { host, what }.into_error()
    }

    /// A GGUF file by its name, at a version, with its other parts if it is the first one. That
    /// version is the present one from now on.
    fn file(&self, name: &str, revision: &str, on_event: OnEvent<'_>) -> Result<Fetched> {
        if let Some(part) = PartName::of(name).filter(|part| part.number > 1) {
            let (number, count, first) = (part.number, part.count, part.with(1));
            let what = format!("{name} is part {number} of {count} of a model; name the first part, {first}");
            return self.no_model(&what);
        }
        let first = self.get(name, revision, on_event)?;
        let mut verified = Vec::new();
        let mut add = |got: &Got| {
            let digest = got.claimed.iter().filter(|_| got.verified);
            verified.extend(digest.map(|d| (got.path.clone(), d.clone())));
        };
        add(&first);
        for part in choose::other_parts(name) {
            add(&self.get(&part, &first.commit, on_event)?);
        }
        self.repo().set_present(&first.commit)?;
        Ok(Fetched {
            name: self.spec.with_file(name).to_string(),
            verified,
            path: first.path,
            claimed: first.claimed,
        })
    }

    fn no_model<T>(&self, what: &str) -> Result<T> {
        let (repo, what) = (self.spec.repo().to_owned(), what.to_owned());
        Err(HubError::NoModel { repo, what }.into_error())
    }

    /// The model that the repository's list of files leads to.
    fn choose(&self, on_event: OnEvent<'_>) -> Result<Fetched> {
        let (commit, names) = self.list(on_event)?;
        let quant = self.spec.quant.as_deref();
        match choose::choose(&names, quant) {
            Choice::Gguf(name) => self.file(&name, &commit, on_event),
            Choice::Checkpoint if has_tokenizer(&names) => self.checkpoint(&commit, &names, on_event),
            Choice::Checkpoint => self.no_model(MISSING),
            Choice::Split => {
                self.no_model("its GGUF files are parts of larger ones, of which some are missing")
            }
            Choice::None => match quant {
                Some(quant) => {
                    let files = super::listed("its GGUF files are", &choose::ggufs(&names));
                    self.no_model(&format!("no GGUF file has the quantization {quant}; {files}"))
                }
                None => self.no_model("the repository has neither"),
            },
        }
    }

    /// The files of a checkpoint among the files `names` of the repository.
    fn checkpoint(&self, commit: &str, names: &[String], on_event: OnEvent<'_>) -> Result<Fetched> {
        let mut verified = Vec::new();
        let mut folder = None;
        let mut get = |name: &str| {
            let got = self.get(name, commit, on_event)?;
            folder = folder.take().or_else(|| got.path.parent().map(Path::to_owned));
            let digest = got.claimed.filter(|_| got.verified);
            verified.extend(digest.map(|d| (got.path.clone(), d)));
            Ok::<_, Error>(got.path)
        };
        for name in choose::small(names) {
            let path = get(name)?;
            if name == "config.json" {
                supported(path.parent().unwrap_or(&path))?;
            }
        }
        let is_weights = |n: &&String| n.ends_with(".safetensors") && !n.contains('/');
        let weights: BTreeSet<String> = if names.iter().any(|n| n == INDEX) {
            let path = get(INDEX)?;
            let text = read_config(&path)?;
            let index: Index = serde_json::from_slice(&text)
                .map_err(|e| Error::parse(Stage::Download, &path, "not an index of safetensors files", e))?;
            index.weight_map.into_values().collect()
        } else if let Some(whole) = names.iter().find(|n| *n == "model.safetensors") {
            [whole.clone()].into()
        } else {
            let all: BTreeSet<String> = names.iter().filter(is_weights).cloned().collect();
            if all.len() != 1 {
                let (repo, what) = (self.spec.repo().to_owned(), format!("it has no {INDEX}"));
                return Err(HubError::NoModel { repo, what }.into_error());
            }
            all
        };
        for name in &weights {
            if !is_file_name(name) {
                let name = name.escape_debug();
                return Err(self.unexpected(format!("{INDEX} contains the invalid file name \"{name}\"")));
            }
            get(name)?;
        }
        let folder = folder.ok_or_else(|| self.unexpected("the checkpoint has no files"))?;
        // Only now, since a version without its weights is of no use without a network.
        self.repo().set_present(commit)?;
        Ok(Fetched {
            name: self.spec.repo_only().to_string(),
            path: folder,
            claimed: None,
            verified,
        })
    }

    /// The commit of the present version, and the names of its files.
    fn list(&self, on_event: OnEvent<'_>) -> Result<(String, Vec<String>)> {
        let url = format!(
            "{}/api/models/{}/revision/{REVISION}",
            self.hub.endpoint,
            self.spec.repo()
        );
        let (mut response, _) = self.request(&Method::GET, &url, 0, on_event)?;
        if !response.status().is_success() {
            return Err(self.refused(&response, None, on_event));
        }
        let body = response.body_mut().with_config().limit(MAX_LIST).read_to_vec();
        let body = body.map_err(|e| match e {
            ureq::Error::BodyExceedsLimit(_) => {
                self.unexpected(format!("the list of files exceeds {MAX_LIST} bytes"))
            }
            e => self.unreachable(&url, &e),
        })?;
        let list: Listing = serde_json::from_slice(&body)
            .map_err(|e| self.unexpected(format!("expected a list of files as JSON: {e}")))?;
        let names = list.siblings.into_iter().map(|s| s.rfilename);
        Ok((list.sha, names.filter(|n| is_file_name(n)).collect()))
    }

    /// Makes sure that the file `name` of a version is in the cache.
    fn get(&self, name: &str, revision: &str, on_event: OnEvent<'_>) -> Result<Got> {
        let url = format!(
            "{}/{}/resolve/{revision}/{}",
            self.hub.endpoint,
            self.spec.repo(),
            escaped(name)
        );
        let (response, meta) = self.request(&Method::HEAD, &url, 0, on_event)?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(self.refused(&response, Some(name), on_event));
        }
        let plain = |text: &String| {
            text.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let etag = meta.etag.filter(|e| !e.is_empty() && plain(e));
        let etag = etag.ok_or_else(|| self.unexpected(format!("{name} has no usable ETag")))?;
        let commit = meta.commit.filter(|c| !c.is_empty() && plain(c));
        let commit = commit.ok_or_else(|| self.unexpected(format!("{name} has no X-Repo-Commit")))?;

        let repo = self.repo();
        let blob = repo.folder.join("blobs").join(&etag);
        let claimed = is_sha256(&etag).then(|| etag.clone());
        let verified = match blob.is_file() {
            true => false,
            false => self.download(name, &url, &etag, meta.size, &blob, on_event)?,
        };
        let path = repo.link(&commit, name, &blob)?;
        Ok(Got {
            path,
            commit,
            claimed,
            verified,
        })
    }

    /// Downloads a file to `blob`. False where another process did.
    fn download(
        &self,
        name: &str,
        url: &str,
        etag: &str,
        size: Option<u64>,
        blob: &Path,
        on_event: OnEvent<'_>,
    ) -> Result<bool> {
        let repo = self.repo();
        let _lock = repo.lock(etag, || on_event(Event::Waiting { name }))?;
        if blob.is_file() {
            return Ok(false);
        }
        // As the hub's own library names it.
        let path = blob.with_file_name(format!("{etag}.incomplete"));
        let folder = blob.parent().unwrap_or(blob);
        std::fs::create_dir_all(folder).map_err(|e| unwritable(folder, &e))?;
        let mut partial = Partial::open(&path, size)?;
        let mut again = partial.done > 0;
        loop {
            self.transfer(name, url, &mut partial, on_event)?;
            let found = partial.hash.clone().finish();
            if found == etag || !is_sha256(etag) {
                break;
            }
            partial.restart()?;
            // What an earlier run left may have been damaged.
            if !std::mem::take(&mut again) {
                drop(partial);
                std::fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
                return Err(HubError::Checksum {
                    file: name.to_owned(),
                    expected: etag.to_owned(),
                    found,
                    todo: "the download was removed; try again",
                }
                .into_error());
            }
        }
        partial.file.sync_all().map_err(|e| unwritable(&path, &e))?;
        drop(partial);
        std::fs::rename(&path, blob).map_err(|e| unwritable(blob, &e))?;
        Ok(true)
    }

    /// Reads the rest of a file, in as many requests as it takes. An error after some that brought
    /// nothing.
    fn transfer(&self, name: &str, url: &str, partial: &mut Partial, on_event: OnEvent<'_>) -> Result<()> {
        let mut failures = 0;
        loop {
            let before = partial.done;
            let why = match self.read(name, url, partial, on_event) {
                Ok(()) if partial.total.is_none_or(|total| total == partial.done) => return Ok(()),
                Ok(()) => "the server closed the connection".to_owned(),
                Err(Stopped::Broken(why)) => why,
                Err(Stopped::Failed(e)) => return Err(*e),
            };
            failures = if partial.done > before { 1 } else { failures + 1 };
            if failures >= ATTEMPTS {
                return Err(HubError::Broken {
                    file: name.to_owned(),
                    done: partial.done,
                    total: partial.total,
                    why,
                }
                .into_error());
            }
            self.pause(backoff(failures), &format!("{name}: {why}"), on_event);
        }
    }

    /// Reads the rest of a file in one request.
    fn read(
        &self,
        name: &str,
        url: &str,
        partial: &mut Partial,
        on_event: OnEvent<'_>,
    ) -> Result<(), Stopped> {
        if partial.total == Some(partial.done) {
            return Ok(());
        }
        let (response, _) = self.request(&Method::GET, url, partial.done, on_event)?;
        match response.status().as_u16() {
            206 if first_byte(response.headers()) == Some(partial.done) => {}
            // The whole file, though a part was asked for.
            200 => partial.restart()?,
            206 | 416 if partial.done > 0 => {
                partial.restart()?;
                return Err(Stopped::Broken(
                    "the server cannot resume the transfer".to_owned(),
                ));
            }
            status if status >= 400 => return Err(self.refused(&response, Some(name), on_event).into()),
            status => return Err(self.unexpected(format!("status {status} for {name}")).into()),
        }
        let (_, body) = response.into_parts();
        let mut body = body.into_reader();
        let mut block = vec![0; BLOCK];
        loop {
            on_event(Event::Downloading {
                file: name,
                done: partial.done,
                total: partial.total,
            });
            let count = match body.read(&mut block) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Stopped::Broken(e.to_string())),
            };
            partial.add(block.get(..count).unwrap_or_default())?;
            if partial.total.is_some_and(|total| partial.done > total) {
                let total = partial.total.unwrap_or_default();
                let what = format!("{name} is longer than the {total} bytes that its header announces");
                partial.restart()?;
                return Err(self.unexpected(what).into());
            }
        }
    }

    /// The answer to a request, which is repeated while the server asks for patience or fails.
    /// Other statuses are returned. With HEAD the answer may be a redirection to another server.
    fn request(
        &self,
        method: &Method,
        url: &str,
        start: u64,
        on_event: OnEvent<'_>,
    ) -> Result<(Response<Body>, Meta)> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let host = host(url).to_owned();
            let (why, error, asked) = match self.send(method, url, start) {
                Err(e) => {
                    let why = format!("cannot reach {host}");
                    let error = self.unreachable(url, &e);
                    if !is_transient(&e) || attempts >= CONNECT_ATTEMPTS {
                        return Err(error);
                    }
                    (why, error, None)
                }
                Ok((response, meta)) => {
                    let status = response.status().as_u16();
                    let asked = retry_after(response.headers());
                    let why = format!("{host}: status {status}");
                    let error = match status {
                        429 => HubError::Limited {
                            host,
                            seconds: asked.map(|d| d.as_secs()),
                        },
                        408 | 500.. => HubError::Server {
                            host,
                            status,
                            attempts,
                        },
                        _ => return Ok((response, meta)),
                    };
                    (why, error.into_error(), asked)
                }
            };
            let wait = asked.unwrap_or_else(|| backoff(attempts));
            if attempts >= ATTEMPTS || wait > LONGEST_PAUSE {
                return Err(error);
            }
            self.pause(wait, &why, on_event);
        }
    }

    /// One request, with its redirections.
    fn send(&self, method: &Method, url: &str, start: u64) -> Result<(Response<Body>, Meta), ureq::Error> {
        let (mut url, mut meta) = (url.to_owned(), Meta::default());
        for _ in 0..=REDIRECTS {
            let mut request = Request::builder()
                .method(method)
                .uri(&url)
                .header("accept-encoding", "identity");
            if let Some(token) = &self.hub.token
                && authority(&url) == authority(&self.hub.endpoint)
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header("range", format!("bytes={start}-"));
            }
            let response = self.agent.run(request.body(())?)?;
            let redirected = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            meta.add(response.headers(), !redirected);
            let location = response.headers().get("location").and_then(|l| l.to_str().ok());
            let Some(location) = location.filter(|_| redirected) else {
                return Ok((response, meta));
            };
            let next = joined(&url, location);
            // The server that has the content need not be asked about it.
            if method == Method::HEAD && authority(&next) != authority(&url) && meta.etag.is_some() {
                return Ok((response, meta));
            }
            url = next;
        }
        Err(ureq::Error::TooManyRedirects)
    }

    fn pause(&self, time: Duration, why: &str, on_event: OnEvent<'_>) {
        let seconds = time.as_secs_f64();
        on_event(Event::Retrying { why, seconds });
        if self.hub.pauses {
            std::thread::sleep(time);
        }
    }

    fn unreachable(&self, url: &str, e: &ureq::Error) -> Error {
        let why = match e {
            ureq::Error::Io(e) => e.to_string(),
            ureq::Error::HostNotFound => "the host name cannot be resolved".to_owned(),
            e => e.to_string(),
        };
        let (host, proxy) = (host(url).to_owned(), self.proxy);
        HubError::Unreachable { host, why, proxy }.into_error()
    }

    /// The error of an answer with a status that says no.
    fn refused(&self, response: &Response<Body>, file: Option<&str>, on_event: OnEvent<'_>) -> Error {
        let repo = self.spec.repo().to_owned();
        let code = response.headers().get("x-error-code");
        let code = code.and_then(|c| c.to_str().ok()).unwrap_or_default();
        match (response.status().as_u16(), file) {
            (status @ (401 | 403), _) => HubError::Denied {
                repo,
                status,
                token: self.hub.token.is_some(),
            }
            .into_error(),
            (404, Some(file)) if code != "RepoNotFound" => {
                // Without the repository its list of files is not to be had either.
                self.list(on_event).map_or_else(
                    |e| e,
                    |(_, names)| {
                        HubError::NoFile {
                            repo,
                            file: file.to_owned(),
                            ggufs: choose::ggufs(&names),
                        }
                        .into_error()
                    },
                )
            }
            (404, _) => HubError::NoRepository { repo }.into_error(),
            (status, _) => self.unexpected(format!("status {status} for {repo}")),
        }
    }
}

/// Certificates that are trusted in place of the built-in ones.
fn certificates() -> Result<Option<RootCerts>> {
    let names = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
    let named = names.into_iter().find_map(|n| Some((n, super::variable(n)?)));
    let Some((name, path)) = named else {
        return Ok(None);
    };
    let bad = |what: String| Error::usage(name, format!("{path}: {what}"));
    let most = MAX_TEXT_FILE;
    let text = read_given(Path::new(&path), most).map_err(|e| bad(e.chain()))?;
    let all: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match all.is_empty() {
        true => Err(bad("expected certificates in PEM, found none".to_owned())),
        false => Ok(Some(RootCerts::Specific(std::sync::Arc::new(all)))),
    }
}

/// True where another attempt may help.
fn is_transient(e: &ureq::Error) -> bool {
    match e {
        // What TLS refuses now it refuses the next time.
        ureq::Error::Io(e) => e.kind() != std::io::ErrorKind::InvalidData,
        ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => true,
        _ => false,
    }
}

fn backoff(failures: u32) -> Duration {
    PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(8))
}

/// How long the server asks to wait, in seconds; dates are not read.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// The first byte of an answer that is a part of a file.
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?;
    range
        .trim()
        .strip_prefix("bytes ")?
        .split('-')
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests;
