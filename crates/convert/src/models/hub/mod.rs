//! Models on the Hugging Face Hub, in the hub's own cache.
//!
//! The layout of the cache is that of `huggingface_hub` for Python, so both use each other's files,
//! finished or not: `models--OWNER--REPO/` with `blobs/ETAG`, `snapshots/COMMIT/FILE` and
//! `refs/main`. These variables are read:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `HF_ENDPOINT` | address of the hub | `https://huggingface.co` |
//! | `HF_HUB_CACHE` | the cache | `$HF_HOME/hub` |
//! | `HF_HOME` | folder of the cache and the token | `~/.cache/huggingface` |
//! | `HF_TOKEN` | token for private and gated models | `HF_TOKEN_PATH`, else the file
//! `$HF_HOME/token` |
//! | `HF_HUB_OFFLINE` | 1: use downloaded files only | 0 |
//! | `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies | none |
//! | `SSL_CERT_FILE` | trusted certificates in PEM, for proxies that read TLS | those of Mozilla |
//!
//! A broken transfer is continued, by this process or the next one. A file whose `ETag` is a
//! SHA-256, as that of every large file is, is verified before it gets its name.
//!
//! Downloads need the feature `hub`. Without it, and on Android, only files that are in the cache
//! can be used. The client is a small one on `ureq`: `hf-hub` 1.0 brings more than 200 crates and a
//! C library, and `hf-hub` 0.5 checks no digests, ignores `HF_TOKEN` and `Retry-After`, and appends
//! to a partial file whatever the server sends.

#[cfg(all(feature = "hub", not(target_os = "android")))]
mod address;
mod cache;
mod choose;
#[cfg(all(feature = "hub", not(target_os = "android")))]
mod client;
#[cfg(all(feature = "hub", not(target_os = "android")))]
mod store;

pub use cache::Cached;

use super::OnEvent;
use crate::checkpoint::folder::is_checkpoint;
use crate::checkpoint::tokenizer;
use cache::{Cache, Repo};
use choose::Choice;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::read::{read_file, read_given};

/// How names of models on the hub begin.
pub const PREFIX: &str = "hf:";
/// All that may begin the name of a model on the hub.
const ADDRESSES: [&str; 5] = [
    PREFIX,
    "hf.co/",
    "huggingface.co/",
    "https://hf.co/",
    "https://huggingface.co/",
];

/// Whether `text` names a model on the hub.
pub fn is_address(text: &str) -> bool {
    ADDRESSES.iter().any(|prefix| text.starts_with(prefix))
}

/// The version of a repository that is used.
#[cfg(all(feature = "hub", not(target_os = "android")))]
const REVISION: &str = "main";
/// The address of the hub.
/// The variable that names the hub.
const ENDPOINT_VARIABLE: &str = "HF_ENDPOINT";
const ENDPOINT: &str = "https://huggingface.co";
/// Requests for one thing, the first included.
const ATTEMPTS: u32 = 4;
/// The pause before the second request; it doubles from one to the next.
const PAUSE: Duration = Duration::from_millis(500);

/// A model on the hub: `OWNER/REPO`, or a GGUF file of it, `OWNER/REPO:FILE` or, by its
/// quantization, `OWNER/REPO:QUANT`. Parsing takes a leading `hf:`, which the text of a spec always
/// has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spec {
    repo: String,
    file: Option<String>,
    quant: Option<String>,
}

impl Spec {
    /// `OWNER/REPO`.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The file, if one is named.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// The repository without a file.
    #[cfg(all(feature = "hub", not(target_os = "android")))]
    fn repo_only(&self) -> Self {
        Self {
            repo: self.repo.clone(),
            file: None,
            quant: None,
        }
    }

    /// The same repository with this file.
    fn with_file(&self, file: &str) -> Self {
        Self {
            repo: self.repo.clone(),
            file: Some(file.to_owned()),
            quant: None,
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.repo)?;
        let part = self.file.as_ref().or(self.quant.as_ref());
        part.iter().try_for_each(|part| write!(f, ":{part}"))
    }
}

impl FromStr for Spec {
    type Err = Error;

    /// A usage error for any other text.
    fn from_str(text: &str) -> Result<Self> {
        let prefix = ADDRESSES.iter().find(|prefix| text.starts_with(**prefix));
        let plain = text
            .strip_prefix(prefix.copied().unwrap_or_default())
            .unwrap_or(text);
        let plain = plain.strip_suffix('/').unwrap_or(plain);
        let (repo, file) = plain.split_once(':').map_or((plain, None), |(r, f)| (r, Some(f)));
        let part = |part: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(allowed)
        };
        let both = repo.split_once('/');
        if both.is_some_and(|(owner, name)| part(owner) && part(name)) && file.is_none_or(is_file_name) {
            let is_quant = |f: &&str| !f.contains(['.', '/']);
            let (quant, file) = (file.filter(is_quant), file.filter(|f| !is_quant(f)));
            return Ok(Self {
                repo: repo.to_owned(),
                file: file.map(str::to_owned),
                quant: quant.map(str::to_owned),
            });
        }
        let what = format!(
            "\"{}\": expected OWNER/REPO, OWNER/REPO:FILE or OWNER/REPO:QUANT, such as \
             bartowski/SmolLM2-135M-Instruct-GGUF:Q4_0",
            text.escape_debug()
        );
        Err(Error::usage("model", what))
    }
}

/// True for a name of a file in a repository that cannot lead out of it.
fn is_file_name(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !name.contains(|c: char| c.is_control() || matches!(c, '\\' | ':'))
}

/// Why a model cannot be had from the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Status 401 or 403.
    #[error(
        "{repo}: access denied (status {status}): the repository is private, gated, or does not exist; {}",
        if *token { "check the name, and that the token in use may read it" }
        else { "check the name; for a private or gated model, set HF_TOKEN to a token that may read it" }
    )]
    Denied {
        repo: String,
        /// 401 or 403.
        status: u16,
        /// A token was sent.
        token: bool,
    },
    /// There is no such repository.
    #[error("{repo}: there is no such repository (status 404); expected OWNER/REPO")]
    NoRepository { repo: String },
    /// The repository has no such file.
    #[error("{repo}: there is no file {} (status 404); {}", file.escape_debug(), listed("its GGUF files are", ggufs))]
    NoFile {
        repo: String,
        file: String,
        /// The GGUF files that it has.
        ggufs: Vec<String>,
    },
    /// The repository has nothing that can be converted.
    #[error("{repo}: expected a GGUF file, or config.json, a tokenizer and safetensors files; {what}")]
    NoModel { repo: String, what: String },
    /// Status 429, again and again, or for longer than is worth waiting.
    #[error(
        "{host}: too many requests (status 429); try again {}; a token in HF_TOKEN raises the limit",
        seconds.map_or_else(|| "later".to_owned(), |s| format!("in {s} seconds"))
    )]
    Limited {
        host: String,
        /// How long the server asks to wait.
        seconds: Option<u64>,
    },
    /// A status that says that the server failed, again and again.
    #[error("{host}: the server failed (status {status}), {attempts} times; try again later")]
    Server {
        host: String,
        status: u16,
        attempts: u32,
    },
    /// Content with another SHA-256 than the hub names.
    #[error("{file}: wrong checksum: expected SHA-256 {expected}, found {found}; {todo}")]
    Checksum {
        file: String,
        /// The digest that the hub names.
        expected: String,
        /// The digest of the content.
        found: String,
        todo: &'static str,
    },
    /// The transfer broke off, again and again.
    #[error("{file}: the transfer broke off after {done} of {} bytes: {why}; run the command again to continue", total.map_or_else(|| "unknown".to_owned(), |n| n.to_string()))]
    Broken {
        file: String,
        /// Bytes that arrived and are kept.
        done: u64,
        /// Bytes in all, if known.
        total: Option<u64>,
        why: String,
    },
    /// There is no connection to the server.
    #[error("cannot reach {host}: {why}; check the network{}", if *proxy { " and the proxy in HTTPS_PROXY, HTTP_PROXY or ALL_PROXY" } else { ", or set HTTPS_PROXY if a proxy is needed" })]
    Unreachable {
        host: String,
        /// What the system says.
        why: String,
        /// A proxy is in use.
        proxy: bool,
    },
    /// A file is not in the cache, and the network is not to be used.
    #[error("{name} is not downloaded, and {why}")]
    NotCached {
        /// The name on the hub.
        name: String,
        /// Why it is not downloaded now.
        why: &'static str,
    },
    /// An answer that is not of the hub's protocol, or a status that has no other variant.
    #[error(
        "{host}: unexpected answer: {what}; check HF_ENDPOINT, the address of the hub (default: `https://huggingface.co`)"
    )]
    Unexpected { host: String, what: String },
}

impl HubError {
    /// As an error of this library, whose source it is.
    pub fn into_error(self) -> Error {
        Error::caused(Stage::Download, self.to_string(), self)
    }
}

/// `words` and the names of `files`, as many as a line holds.
fn listed(words: &str, files: &[String]) -> String {
    const MAX_SHOWN: usize = 12;
    if files.is_empty() {
        return "it has no GGUF files".to_owned();
    }
    let shown: Vec<&str> = files.iter().take(MAX_SHOWN).map(String::as_str).collect();
    let more = match files.len().saturating_sub(MAX_SHOWN) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{words} {}{more}", shown.join(", "))
}

pub(super) struct Fetched {
    /// Its full name: a spec with the file, or without one for a checkpoint.
    pub name: String,
    /// The GGUF file, the first part of one, or the folder of the checkpoint.
    pub path: PathBuf,
    /// The SHA-256 of that GGUF file as the hub tells it.
    pub claimed: Option<String>,
    /// Files that were downloaded and verified just now, with their SHA-256.
    pub verified: Vec<(PathBuf, String)>,
}

/// The hub, its cache, and how patient its client is.
#[derive(Clone)]
pub struct Hub {
    endpoint: String,
    cache: Cache,
    token: Option<String>,
    offline: bool,
    /// Waits before it repeats a request.
    pauses: bool,
}

impl fmt::Debug for Hub {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("cache", &self.cache)
            .finish_non_exhaustive()
    }
}

/// The value of a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .map(|v| v.trim().to_owned())
        .filter(|v| !v.is_empty())
}

/// Bytes of a file with a token.
const MAX_TOKEN: u64 = 1 << 16;

/// The token in the file that `HF_TOKEN_PATH` names, else in that of the hub's folder `home`, where
/// there may be none.
fn stored_token(home: Option<&Path>) -> Result<Option<String>> {
    let text = match (variable("HF_TOKEN_PATH"), home) {
        (Some(path), _) => {
            read_given(Path::new(&path), MAX_TOKEN).map_err(|e| Error::usage("HF_TOKEN_PATH", e.chain()))?
        }
        (None, Some(home)) => read_file(&home.join("token"), MAX_TOKEN).unwrap_or_default(),
        (None, None) => Vec::new(),
    };
    let text = String::from_utf8_lossy(&text);
    Ok(Some(text.trim().to_owned()).filter(|t| !t.is_empty()))
}

impl Hub {
    /// The hub at `endpoint`, an address such as `https://huggingface.co`. Its cache is the folder
    /// `cache`, which need not exist. A usage error where the endpoint is not an address.
    pub fn new(endpoint: &str, cache: PathBuf) -> Result<Self> {
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            let what = format!(
                "\"{}\": expected http://HOST or https://HOST",
                endpoint.escape_debug()
            );
            return Err(Error::usage(ENDPOINT_VARIABLE, what));
        }
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: Cache::new(cache),
            token: None,
            offline: false,
            pauses: true,
        })
    }

    /// The same hub, whose client repeats requests at once.
    #[must_use]
    pub fn without_pauses(mut self) -> Self {
        self.pauses = false;
        self
    }

    /// The hub as the environment describes it; see the module documentation. A usage error where
    /// no folder for the cache is known, or the endpoint is not an address.
    pub fn from_env() -> Result<Self> {
        let endpoint = variable(ENDPOINT_VARIABLE).unwrap_or_else(|| ENDPOINT.to_owned());
        let home = home();
        let cache = variable("HF_HUB_CACHE")
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("hub")));
        let cache = cache.ok_or_else(|| {
            let what = "is not set, and there is no home folder; set it to a folder for downloads";
            Error::usage("HF_HOME", what)
        })?;
        let token = match variable("HF_TOKEN") {
            Some(token) => Some(token),
            None => stored_token(home.as_deref())?,
        };
        let offline = variable("HF_HUB_OFFLINE").map(|v| v.to_ascii_lowercase());
        Ok(Self {
            token,
            offline: offline.is_some_and(|v| matches!(v.as_str(), "1" | "true" | "yes" | "on")),
            ..Self::new(&endpoint, cache)?
        })
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &std::path::Path {
        self.cache.folder()
    }

    /// The models in the cache that can be converted, by name.
    pub fn cached(&self) -> Vec<Cached> {
        self.cache.models()
    }

    /// Removes a model from the cache: a GGUF file, or a checkpoint with all else that was
    /// downloaded of its repository. Other tools that use this cache lose it too. An error where it
    /// cannot be removed.
    pub fn forget(&self, cached: &Cached) -> Result<()> {
        self.cache.repo(cached.spec.repo()).forget(cached)
    }

    /// The files of a model, from the cache or the network. `fresh` asks the network first.
    pub(super) fn fetch(&self, spec: &Spec, fresh: bool, on_event: OnEvent<'_>) -> Result<Fetched> {
        let cached = |why| {
            let found = self.find_cached(spec)?;
            found.ok_or_else(|| {
                let name = spec.to_string();
                HubError::NotCached { name, why }.into_error()
            })
        };
        if self.offline {
            return cached("HF_HUB_OFFLINE is set; unset it to download");
        }
        if !fresh && let Some(found) = self.find_cached(spec)? {
            return Ok(found);
        }
        #[cfg(not(all(feature = "hub", not(target_os = "android"))))]
        {
            let _ = on_event;
            cached("this build cannot download; rebuild with `--features hub`")
        }
        #[cfg(all(feature = "hub", not(target_os = "android")))]
        self.download(spec, on_event)
    }

    /// The files of a model in the cache, if all are there.
    fn find_cached(&self, spec: &Spec) -> Result<Option<Fetched>> {
        let repo = self.cache.repo(spec.repo());
        let Some(snapshot) = repo.snapshot() else {
            return Ok(None);
        };
        let fetched = |name: &str, path: PathBuf| Fetched {
            claimed: repo.digest(&path),
            name: spec.with_file(name).to_string(),
            path,
            verified: Vec::new(),
        };
        if let Some(file) = spec.file() {
            let path = snapshot.join(file);
            let others = choose::other_parts(file);
            let whole = path.is_file() && others.iter().all(|part| snapshot.join(part).is_file());
            return Ok(whole.then(|| fetched(file, path)));
        }
        let names = repo.files();
        match choose::choose(&names, spec.quant.as_deref()) {
            Choice::Gguf(name) => Ok(Some(fetched(&name, snapshot.join(&name)))),
            Choice::Checkpoint if is_checkpoint(&snapshot) && has_tokenizer(&names) => {
                let files = crate::checkpoint::folder::sources(&snapshot);
                let whole = files.is_ok_and(|files| files.iter().all(|f| f.is_file()));
                Ok(whole.then(|| Fetched {
                    name: spec.to_string(),
                    path: snapshot,
                    claimed: None,
                    verified: Vec::new(),
                }))
            }
            _ => Ok(None),
        }
    }
}

/// True where the names hold a tokenizer.
fn has_tokenizer(names: &[String]) -> bool {
    tokenizer::is_among(|name| names.iter().any(|n| n == name))
}

/// The folder that `HF_HOME` names, else its default.
fn home() -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches =
        || absolute("XDG_CACHE_HOME").or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    variable("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| caches().map(|c| c.join("huggingface")))
}

#[cfg(test)]
mod tests;
