//! Files that speed up the next start: compiled programs, and validation and measurement results of
//! devices.
//!
//! A [`Store`] is a folder with one file per [`Key`]. The key contains everything that the contents
//! depend on. It is stored in the file and compared byte by byte, so the hash in the file name need
//! not be strong. Damaged files are removed, all at once with one warning, and rebuilt. If the
//! folder is not usable, one warning is logged and the run continues without it. The cache changes
//! only how long a start takes.
//!
//! Files are written under a temporary name and renamed, so several processes can share a folder:
//! each sees whole files, and the last writer of a key wins. The first write of a process removes
//! the temporary files of processes that were killed.
#![warn(missing_docs)]

mod entry;

use crate::error::{Error, Result};
use crate::files::temporary;
use crate::fmt::count_text;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

/// Default size limit of a folder in bytes.
pub const DEFAULT_LIMIT: u64 = 4 << 30;

/// Environment variable that selects the folder.
pub const FOLDER_VARIABLE: &str = "TLITE_CACHE_DIR";

/// File name extension.
const EXTENSION: &str = "tlc";

/// Mode of files: drivers execute them.
const PRIVATE: u32 = 0o600;

/// Resolution of the time of a file's last use.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Kind of a file's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An OpenCL program binary.
    Program,
    /// A pipeline cache of wgpu, of one pipeline.
    Pipeline,
    /// Kernel validation results of a device.
    Verdict,
    /// Kernel variants that are not used on a device.
    Quarantine,
    /// Tuned kernel settings of a device.
    Tuning,
    /// Measured speed of a device.
    Probe,
}

impl Kind {
    /// All values.
    pub const ALL: [Self; 6] = [
        Self::Program,
        Self::Pipeline,
        Self::Verdict,
        Self::Quarantine,
        Self::Tuning,
        Self::Probe,
    ];

    /// The name in options and file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Pipeline => "pipeline",
            Self::Verdict => "verdict",
            Self::Quarantine => "quarantine",
            Self::Tuning => "tuning",
            Self::Probe => "probe",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Everything that a file's contents depend on.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Key {
    /// The device name that the driver reports.
    pub device: String,
    /// Names and versions of driver and platform, and the device's version.
    pub driver: String,
    /// What the file is about, for display: a kernel with its defines.
    pub subject: String,
    /// The compiled source including options.
    pub text: String,
}

/// A file of a [`Store`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it holds.
    pub kind: Kind,
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was written or last used, to the day.
    pub used: SystemTime,
    /// Its key; `None` for a damaged file, which the next start removes.
    pub key: Option<Key>,
}

/// A cache folder. See the module documentation.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limit: u64,
    /// Total size of the files in bytes, once something has been written.
    size: Mutex<Option<u64>>,
    /// A warning about the folder has been logged.
    warned: AtomicBool,
    /// Whether the folder is private to the user; if not, it is not used.
    own: OnceLock<bool>,
    /// Held while damaged files are removed and reported.
    mending: Mutex<()>,
}

impl PartialEq for Store {
    /// Whether both use the same folder.
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for Store {}

impl Store {
    /// A store in `folder`, which need not exist, limited to `limit` bytes. Does no I/O yet.
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self {
            folder,
            limit,
            size: Mutex::new(None),
            warned: AtomicBool::new(false),
            own: OnceLock::new(),
            mending: Mutex::new(()),
        }
    }

    /// The user's cache folder: the one that [`FOLDER_VARIABLE`] names, else one in the system's
    /// place for caches. `None` if the environment names none.
    pub fn default_folder() -> Option<PathBuf> {
        named_folder(FOLDER_VARIABLE, "store")
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tests whether the folder can be written or, if it does not exist, created below its nearest
    /// existing parent. If not, later failures are not reported again.
    pub fn try_writing(&self) -> std::io::Result<()> {
        let there = self
            .folder
            .ancestors()
            .find(|p| p.as_os_str().is_empty() || p.exists());
        let there = there
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let tried = temporary::create(there, PRIVATE);
        if tried.is_err() {
            self.warned.store(true, Ordering::Relaxed);
        }
        // The error of the trial file contains its name.
        tried.map(drop).map_err(|e| e.kind().into())
    }

    /// Whether something could not be read or written.
    pub fn is_refused(&self) -> bool {
        self.warned.load(Ordering::Relaxed)
    }

    /// The contents stored under `key`. A damaged or foreign file is removed.
    pub fn get(&self, kind: Kind, key: &Key) -> Option<Vec<u8>> {
        if !self.is_own() {
            return None;
        }
        let bytes = self.bytes_of(key)?;
        let path = self.path(kind, &bytes);
        let (file, metadata) = match self.read(&path) {
            Ok(read) => read,
            Err(e) if e.kind() == ErrorKind::NotFound => return None,
            Err(e) => {
                self.warn_once("read", &path, &e);
                return None;
            }
        };
        match entry::read(&file) {
            Ok((found, contents)) if found == bytes => {
                touch(&path, &metadata);
                Some(contents.to_vec())
            }
            // Hash collision: the next write replaces the file.
            Ok(_) => None,
            Err(why) => {
                let _turn = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
                // Another thread may have reported it.
                if path.exists() {
                    let count = self.remove_damaged().max(1);
                    let files = count_text(count, "damaged cache file");
                    log::warn!(
                        "removed {files}, for example {}: {why}; contents are rebuilt when needed, except settings chosen by `tlite tune`",
                        path.display()
                    );
                }
                None
            }
        }
    }

    /// Removes all damaged and foreign files, since one is rarely damaged alone, so that one
    /// warning covers them. Returns their number.
    fn remove_damaged(&self) -> usize {
        let mut files = self.files().unwrap_or_default();
        files.retain(|(_, path, _)| {
            let read = self.read(path);
            read.is_ok_and(|(file, _)| entry::read(&file).is_err())
        });
        files.iter().for_each(|(_, path, _)| self.delete(path));
        files.len()
    }

    /// Stores `contents` under `key`, replacing earlier contents. A failure is logged once and
    /// otherwise ignored. Above the limit, the least recently used files are removed.
    pub fn put(&self, kind: Kind, key: &Key, contents: &[u8]) {
        let Some(bytes) = self.bytes_of(key) else { return };
        let path = self.path(kind, &bytes);
        if let Err(e) = create_folder(&self.folder) {
            return self.warn_once("write", &path, &e);
        }
        if !self.is_own() {
            return;
        }
        let file = entry::write(&bytes, contents);
        match self.write(&path, &file) {
            Ok(()) => self.trim(file.len() as u64),
            Err(e) => self.warn_once("write", &path, &e),
        }
    }

    /// Removes the file of `key`, which a driver has refused.
    pub fn remove(&self, kind: Kind, key: &Key) {
        if let Some(bytes) = self.bytes_of(key).filter(|_| self.is_own()) {
            self.delete(&self.path(kind, &bytes));
        }
    }

    /// All files of the store, most recently used first; empty if the folder does not exist. Fails
    /// if the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        self.entries_of(None)
    }

    /// Like [`Store::entries`], for the files of one kind.
    pub(crate) fn entries_of(&self, kind: Option<Kind>) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = self
            .files_of(kind)?
            .map(|(kind, path, metadata)| {
                let file = self.read(&path).map(|(file, _)| file).unwrap_or_default();
                let key = entry::read(&file)
                    .ok()
                    .and_then(|(key, _)| serde_json::from_slice(key).ok());
                Entry {
                    kind,
                    path,
                    bytes: metadata.len(),
                    used: used(&metadata),
                    key,
                }
            })
            .collect();
        entries.sort_by(|a, b| (b.used, &a.path).cmp(&(a.used, &b.path)));
        Ok(entries)
    }

    /// Removes the files of `kind`, or all, and returns their number and total bytes. Foreign files
    /// in the folder stay. Fails if a file cannot be removed.
    pub fn clear(&self, kind: Option<Kind>) -> Result<(usize, u64)> {
        let (mut count, mut bytes) = (0, 0);
        for (_, path, metadata) in self.files_of(kind)? {
            match std::fs::remove_file(&path) {
                Ok(()) => {
                    count += 1;
                    bytes += metadata.len();
                }
                // Another process removed it first.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io("cannot remove", &path, e)),
            }
        }
        temporary::sweep(&self.folder);
        *self.size.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok((count, bytes))
    }

    /// Whether nobody else can put files there, which drivers would run. If somebody can, logs that
    /// once, and the folder is not used. `true` if the folder does not exist.
    fn is_own(&self) -> bool {
        if let Some(known) = self.own.get() {
            return *known;
        }
        let Ok(metadata) = std::fs::metadata(&self.folder) else {
            return true;
        };
        *self.own.get_or_init(|| {
            let exposed = exposed(&metadata);
            if let Some(why) = &exposed {
                self.warned.store(true, Ordering::Relaxed);
                log::warn!(
                    "the cache folder {} is not used: {why}, and drivers execute its files",
                    self.folder.display()
                );
            }
            exposed.is_none()
        })
    }

    /// The key as stored in a file.
    fn bytes_of(&self, key: &Key) -> Option<Vec<u8>> {
        let bytes = serde_json::to_vec(key);
        bytes
            .map_err(|e| log::debug!("cache key of {}: {e}", key.subject))
            .ok()
    }

    fn path(&self, kind: Kind, key: &[u8]) -> PathBuf {
        // If a release of Rust changes this hash, nothing is found and files are written again.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.folder
            .join(format!("{kind}-{:016x}.{EXTENSION}", hasher.finish()))
    }

    fn read(&self, path: &Path) -> std::io::Result<(Vec<u8>, Metadata)> {
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        // A file larger than the limit of the whole folder is foreign, and may not fit in memory.
        if metadata.len() > self.limit.max(entry::HEADER as u64) {
            return Ok((Vec::new(), metadata));
        }
        Ok((std::fs::read(path)?, metadata))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = temporary::create(&self.folder, PRIVATE)?;
        file.write_all(bytes)?;
        file.persist(path).map(drop).map_err(|e| e.error)
    }

    fn delete(&self, path: &Path) {
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => self.warn_once("remove", path, &e),
        }
    }

    /// Logs once that the folder cannot be used.
    fn warn_once(&self, what: &str, path: &Path, e: &std::io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "cannot {what} cache file {}: {e}; the next start may be slower",
                path.display()
            );
        }
    }

    /// [`Store::files`] of `kind`, or all.
    fn files_of(&self, kind: Option<Kind>) -> Result<impl Iterator<Item = (Kind, PathBuf, Metadata)>> {
        let files = self.files()?.into_iter();
        Ok(files.filter(move |(k, ..)| kind.is_none_or(|kind| *k == kind)))
    }

    /// Kind, path and metadata of every file of the store.
    fn files(&self) -> Result<Vec<(Kind, PathBuf, Metadata)>> {
        let failed = |e| Error::io("cannot read the cache folder", &self.folder, e);
        let list = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            list => list.map_err(failed)?,
        };
        let mut files = Vec::new();
        for item in list {
            let path = item.map_err(failed)?.path();
            // Skip files that another process has just removed.
            if let (Some(kind), Ok(metadata)) = (kind_of(&path), std::fs::metadata(&path)) {
                files.push((kind, path, metadata));
            }
        }
        files.retain(|(_, _, metadata)| metadata.is_file());
        Ok(files)
    }

    /// Adds `new` bytes to the total, and removes the least recently used files if it exceeds the
    /// limit.
    fn trim(&self, new: u64) {
        let mut size = self.size.lock().unwrap_or_else(PoisonError::into_inner);
        let known = size.map(|old| old.saturating_add(new));
        if known.is_some_and(|total| total <= self.limit) {
            *size = known;
            return;
        }
        let mut files = match self.files() {
            Ok(files) => files,
            Err(e) => return log::debug!("{}", e.chain()),
        };
        let mut total: u64 = files.iter().map(|(_, _, m)| m.len()).sum();
        files.sort_by_key(|(_, _, m)| used(m));
        for (_, path, metadata) in files {
            if total <= self.limit {
                break;
            }
            self.delete(&path);
            total = total.saturating_sub(metadata.len());
        }
        *size = Some(total);
    }
}

/// The folder that the environment variable `variable` names, else `transformer-lite/name` where
/// the system keeps a user's caches. `None` where the environment names neither.
pub fn named_folder(variable: &str, name: &str) -> Option<PathBuf> {
    let value = |name| std::env::var_os(name).map(PathBuf::from);
    // The XDG specification says to ignore relative paths.
    let folder = |name| value(name).filter(|p| p.is_absolute());
    let caches = || {
        if cfg!(target_os = "windows") {
            folder("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            folder("HOME").map(|home| home.join("Library/Caches"))
        } else {
            folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")))
        }
    };
    let named = value(variable).filter(|p| !p.as_os_str().is_empty());
    named.or_else(|| caches().map(|c| c.join("transformer-lite").join(name)))
}

/// The kind of a file that has a name of the store's.
fn kind_of(path: &Path) -> Option<Kind> {
    let stem = path.file_stem()?.to_str()?;
    let (name, hash) = stem.split_once('-')?;
    let ours =
        path.extension()? == EXTENSION && hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit());
    Kind::ALL.into_iter().find(|kind| ours && kind.name() == name)
}

fn used(metadata: &Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Updates a file's time of last use, unless that was done within the last day.
fn touch(path: &Path, metadata: &Metadata) {
    if used(metadata).elapsed().is_ok_and(|age| age > DAY) {
        let touched = File::open(path).and_then(|f| f.set_modified(SystemTime::now()));
        touched.unwrap_or_else(|e| log::debug!("time of {}: {e}", path.display()));
    }
}

/// Why somebody else can write to a folder, or change its permissions.
#[cfg(unix)]
fn exposed(folder: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, user) = (folder.uid(), rustix::process::geteuid().as_raw());
    // Even with the sticky bit, others can create files under names that are looked for.
    let others = folder.mode() & 0o022;
    if owner != user {
        return Some(format!("it belongs to user {owner}, this is user {user}"));
    }
    (others != 0).then(|| {
        let mode = folder.mode() & 0o7777;
        format!("others can write to it (mode {mode:04o}; run `chmod go-w` on it)")
    })
}

/// On other systems, users' folders inherit private permissions.
#[cfg(not(unix))]
fn exposed(_: &Metadata) -> Option<String> {
    None
}

/// Creates a folder that only the user can write, since drivers execute its files.
fn create_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests;
