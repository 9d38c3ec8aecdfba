//! The hub's cache on disk.

use super::super::digest::is_sha256;
use super::Spec;
use super::choose::{self, Choice};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::read::read_config;

/// Folders in folders that are looked through.
const DEPTH: usize = 8;

/// A model in the cache: a GGUF file, or a repository with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cached {
    /// Its name on the hub, with the file if that is a GGUF file.
    pub spec: Spec,
    /// The file, or the folder of the checkpoint.
    pub path: PathBuf,
    pub bytes: u64,
}

/// The folder of the cache.
#[derive(Clone, Debug)]
pub(super) struct Cache(PathBuf);

/// The folder of a repository in it.
pub(super) struct Repo {
    pub folder: PathBuf,
    /// Where lock files of its downloads are.
    pub locks: PathBuf,
}

impl Cache {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    pub(super) fn repo(&self, repo: &str) -> Repo {
        let name = format!("models--{}", repo.replace('/', "--"));
        Repo {
            folder: self.0.join(&name),
            locks: self.0.join(".locks").join(name),
        }
    }

    /// The models of the present versions of all repositories.
    pub(super) fn models(&self) -> Vec<Cached> {
        let mut found = Vec::new();
        for item in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let name = item.file_name();
            let parts = name
                .to_str()
                .and_then(|n| n.strip_prefix("models--")?.split_once("--"));
            let Some((owner, name)) = parts else { continue };
            let repo = self.repo(&format!("{owner}/{name}"));
            let Some(snapshot) = repo.snapshot() else { continue };
            let files = repo.files();
            let bytes = |file: &String| std::fs::metadata(snapshot.join(file)).map_or(0, |m| m.len());
            let mut add = |spec: String, path, bytes| {
                found.extend(spec.parse().ok().map(|spec| Cached { spec, path, bytes }));
            };
            for file in files.iter().filter(|f| choose::is_model(f, &files)) {
                let others: u64 = choose::other_parts(file).iter().map(bytes).sum();
                add(
                    format!("{owner}/{name}:{file}"),
                    snapshot.join(file),
                    bytes(file) + others,
                );
            }
            if choose::choose(&files, None) == Choice::Checkpoint {
                add(
                    format!("{owner}/{name}"),
                    snapshot.clone(),
                    files.iter().map(bytes).sum(),
                );
            }
        }
        found.sort_by_key(|c| c.spec.to_string());
        found
    }
}

impl Repo {
    /// The folder with the files of the present version.
    pub(super) fn snapshot(&self) -> Option<PathBuf> {
        let commit = read_config(&self.folder.join("refs/main")).ok()?;
        let commit = std::str::from_utf8(&commit).ok()?.trim();
        let plain = !commit.is_empty() && commit.bytes().all(|b| b.is_ascii_alphanumeric());
        Some(self.folder.join("snapshots").join(commit)).filter(|p| plain && p.is_dir())
    }

    /// Names of the files of the present version that are here.
    pub(super) fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(snapshot) = self.snapshot() {
            collect(&snapshot, "", DEPTH, &mut names);
        }
        names.sort();
        names
    }

    /// The SHA-256 that the hub names for a large file of a snapshot.
    pub(super) fn digest(&self, path: &Path) -> Option<String> {
        let real = std::fs::canonicalize(path).ok()?;
        let name = real.file_name()?.to_str()?;
        is_sha256(name).then(|| name.to_owned())
    }

    /// Removes the content of a file with that of its other parts, and its names in all versions.
    /// For a checkpoint, removes all that was downloaded of the repository.
    pub(super) fn forget(&self, cached: &Cached) -> Result<()> {
        let failed = |path: &Path, e| Error::io("cannot remove", path, e);
        let Some(name) = cached.spec.file() else {
            return std::fs::remove_dir_all(&self.folder).map_err(|e| failed(&self.folder, e));
        };
        for other in choose::other_parts(name) {
            let path = cached.path.with_file_name(choose::file_name(&other));
            if path.is_file() {
                self.forget_file(&path, &other)?;
            }
        }
        self.forget_file(&cached.path, name)
    }

    fn forget_file(&self, path: &Path, name: &str) -> Result<()> {
        let failed = |path: &Path, e| Error::io("cannot remove", path, e);
        let remove = |path: &Path| std::fs::remove_file(path).map_err(|e| failed(path, e));
        let blob = std::fs::canonicalize(path).map_err(|e| failed(path, e))?;
        let snapshots = std::fs::read_dir(self.folder.join("snapshots"));
        for item in snapshots.into_iter().flatten().flatten() {
            let path = item.path().join(name);
            if std::fs::canonicalize(&path).is_ok_and(|real| real == blob) && path != blob {
                remove(&path)?;
            }
        }
        remove(&blob)
    }
}

fn collect(folder: &Path, before: &str, depth: usize, names: &mut Vec<String>) {
    for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (item.path(), item.file_name());
        let Some(name) = name.to_str() else { continue };
        let name = format!("{before}{name}");
        if path.is_file() {
            names.push(name);
        } else if path.is_dir() && depth > 0 {
            collect(&path, &format!("{name}/"), depth - 1, names);
        }
    }
}
