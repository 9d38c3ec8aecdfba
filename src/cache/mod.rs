//! Files that save time at the next start: programs as drivers compiled them, and what was found out about devices.
//!
//! A [`Store`] is a folder of them, one file for each [`Key`]. A key is everything that the contents depend on, and stands in the file: what is
//! found is compared with it byte by byte, so the hash in a file's name need not be a strong one. Whatever is wrong with a file,
//! it is removed and made anew, with all others of which that holds, and they are told of together; whatever is wrong with the folder, it is said once, and the run goes on without. So the cache changes how
//! long a start takes and nothing else.
//!
//! Files are written under another name and renamed, so several processes may use one folder: each sees whole files, and the last
//! one to write a key wins.

mod entry;

use crate::error::{Error, Result};
use crate::units::count_text;
use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes that a folder may take unless asked otherwise.
pub const DEFAULT_LIMIT: u64 = 4 << 30;

/// The variable that names the folder, before all others.
pub const FOLDER_VARIABLE: &str = "TLITE_CACHE_DIR";

/// How names of files end.
const EXTENSION: &str = "tlc";

/// How names of files begin that are not yet whole.
const TEMPORARY: &str = ".tlite-";

/// A temporary file older than this was left by a process that ended before its time.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The time of a file's last use is kept to this.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An OpenCL program as its driver gives it away.
    Program,
    /// A pipeline cache of wgpu, of one pipeline.
    Pipeline,
    /// What checks of kernels on a device found.
    Verdict,
    /// What measuring on a device chose for kernels.
    Tuning,
    /// How fast a device is.
    Probe,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Program,
        Self::Pipeline,
        Self::Verdict,
        Self::Tuning,
        Self::Probe,
    ];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Pipeline => "pipeline",
            Self::Verdict => "verdict",
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
    /// The device as its driver calls it.
    pub device: String,
    /// Names and versions of driver and platform, and the device's version.
    pub driver: String,
    /// What it is of, for people: a kernel with its defines.
    pub subject: String,
    /// The text that was compiled, options included.
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
    /// When it was written or, to a day, last used.
    pub used: SystemTime,
    /// What it is for; `None` for a damaged file, which the next start removes.
    pub key: Option<Key>,
}

/// A folder of files that save time. See the module documentation.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limit: u64,
    /// Bytes of all files, once something was written.
    size: Mutex<Option<u64>>,
    /// The folder cannot be used as it should, which was said.
    told: AtomicBool,
    /// The folder is there and nobody else's; false where it is not to be used.
    own: OnceLock<bool>,
    /// Whose turn it is to remove damaged files and tell of them.
    mending: Mutex<()>,
}

impl PartialEq for Store {
    /// The same folder.
    fn eq(&self, other: &Self) -> bool {
        self.folder == other.folder
    }
}

impl Eq for Store {}

impl Store {
    /// The store in `folder`, which need not exist, of at most `limit` bytes. Nothing is read or written yet.
    pub fn new(folder: PathBuf, limit: u64) -> Self {
        Self {
            folder,
            limit,
            size: Mutex::new(None),
            told: AtomicBool::new(false),
            own: OnceLock::new(),
            mending: Mutex::new(()),
        }
    }

    /// A user's own folder: what [`FOLDER_VARIABLE`] names, else a folder where the system keeps caches; `None` where the environment
    /// names none.
    pub fn default_folder() -> Option<PathBuf> {
        named_folder(FOLDER_VARIABLE, "store")
    }

    /// Where the files are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the folder can be written, which is tried, or made; what is above it is tried in its place where it is not there. Where it cannot, nothing
    /// more is said of that later.
    pub fn try_writing(&self) -> std::io::Result<()> {
        let there = self
            .folder
            .ancestors()
            .find(|p| p.as_os_str().is_empty() || p.exists());
        let there = there
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let tried = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(there);
        if tried.is_err() {
            self.told.store(true, Ordering::Relaxed);
        }
        // The error of the file that was tried names that file.
        tried.map(drop).map_err(|e| e.kind().into())
    }

    /// True where something could not be read or written.
    pub fn is_refused(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// What was stored under `key`. A file that is not whole, or not of this store, is removed.
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
                self.tell("read", &path, &e);
                return None;
            }
        };
        match entry::read(&file) {
            Ok((found, contents)) if found == bytes => {
                touch(&path, &metadata);
                Some(contents.to_vec())
            }
            // The names are equal by chance; the next to be written takes the place.
            Ok(_) => None,
            Err(why) => {
                let _turn = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
                // Another thread may have told of it.
                if path.exists() {
                    let count = self.remove_damaged().max(1);
                    let files = count_text(count, "damaged cache file");
                    log::warn!(
                        "{files} removed, {} among them: {why}; what was in them is made anew, but for what `tlite tune` chose",
                        path.display()
                    );
                }
                None
            }
        }
    }

    /// Removes all files that are not whole, or not of this store: where one is damaged others probably are, and all together are told of at once.
    /// Returns how many there were.
    fn remove_damaged(&self) -> usize {
        let mut files = self.files().unwrap_or_default();
        files.retain(|(_, path, _)| {
            let read = self.read(path);
            read.is_ok_and(|(file, _)| entry::read(&file).is_err())
        });
        files.iter().for_each(|(_, path, _)| self.delete(path));
        files.len()
    }

    /// Stores `contents` under `key`, in place of what was there. Where that fails it is said once, and nothing else happens. Beyond the
    /// limit the files go that were not used for longest.
    pub fn put(&self, kind: Kind, key: &Key, contents: &[u8]) {
        let Some(bytes) = self.bytes_of(key) else { return };
        let path = self.path(kind, &bytes);
        if let Err(e) = create_folder(&self.folder) {
            return self.tell("write", &path, &e);
        }
        if !self.is_own() {
            return;
        }
        let file = entry::write(&bytes, contents);
        match self.write(&path, &file) {
            Ok(()) => self.trim(file.len() as u64),
            Err(e) => self.tell("write", &path, &e),
        }
    }

    /// Removes what is stored under `key`, which a driver has refused.
    pub fn remove(&self, kind: Kind, key: &Key) {
        if let Some(bytes) = self.bytes_of(key).filter(|_| self.is_own()) {
            self.delete(&self.path(kind, &bytes));
        }
    }

    /// All files of the store, last used first. No folder is no files. An error where the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = self
            .files()?
            .into_iter()
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

    /// Removes the files of `kind`, or all, and returns how many there were and their bytes. Files of others in the folder stay. An error
    /// where one cannot be removed.
    pub fn clear(&self, kind: Option<Kind>) -> Result<(usize, u64)> {
        let (mut count, mut bytes) = (0, 0);
        for (_, path, metadata) in self
            .files()?
            .into_iter()
            .filter(|(k, ..)| kind.is_none_or(|kind| *k == kind))
        {
            match std::fs::remove_file(&path) {
                Ok(()) => {
                    count += 1;
                    bytes += metadata.len();
                }
                // Another process was faster.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(Error::io("cannot remove", &path, e)),
            }
        }
        self.sweep();
        *self.size.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok((count, bytes))
    }

    /// Nobody else can put a file there for drivers to run. Says once where somebody can, and the folder is not used. True where there is none.
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
                self.told.store(true, Ordering::Relaxed);
                log::warn!(
                    "the cache folder {} is not used: {why}, and drivers run what is in it",
                    self.folder.display()
                );
            }
            exposed.is_none()
        })
    }

    /// The key as it stands in a file.
    fn bytes_of(&self, key: &Key) -> Option<Vec<u8>> {
        let bytes = serde_json::to_vec(key);
        bytes
            .map_err(|e| log::debug!("cache key of {}: {e}", key.subject))
            .ok()
    }

    fn path(&self, kind: Kind, key: &[u8]) -> PathBuf {
        // A release of Rust with another hash finds nothing and writes anew.
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.folder
            .join(format!("{kind}-{:016x}.{EXTENSION}", hasher.finish()))
    }

    fn read(&self, path: &Path) -> std::io::Result<(Vec<u8>, Metadata)> {
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        // What is larger than all files together may be is none of them, and need not fit the memory.
        if metadata.len() > self.limit.max(entry::HEADER as u64) {
            return Ok((Vec::new(), metadata));
        }
        Ok((std::fs::read(path)?, metadata))
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempfile_in(&self.folder)?;
        file.write_all(bytes)?;
        file.persist(path).map(drop).map_err(|e| e.error)
    }

    fn delete(&self, path: &Path) {
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => self.tell("remove", path, &e),
        }
    }

    /// Says once that the folder cannot be used as it should.
    fn tell(&self, what: &str, path: &Path, e: &std::io::Error) {
        if !self.told.swap(true, Ordering::Relaxed) {
            log::warn!(
                "cannot {what} cache file {}: {e}; the next start may take longer",
                path.display()
            );
        }
    }

    /// Kind, path and size of every file of the store.
    fn files(&self) -> Result<Vec<(Kind, PathBuf, Metadata)>> {
        let failed = |e| Error::io("cannot read the cache folder", &self.folder, e);
        let list = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            list => list.map_err(failed)?,
        };
        let mut files = Vec::new();
        for item in list {
            let path = item.map_err(failed)?.path();
            // One that another process has just removed is none.
            if let (Some(kind), Ok(metadata)) = (kind_of(&path), std::fs::metadata(&path)) {
                files.push((kind, path, metadata));
            }
        }
        files.retain(|(_, _, metadata)| metadata.is_file());
        Ok(files)
    }

    /// Counts `new` bytes, and removes what was not used for longest where all are more than the limit.
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

    /// Removes what processes left that ended while they wrote.
    fn sweep(&self) {
        let Ok(list) = std::fs::read_dir(&self.folder) else {
            return;
        };
        for path in list.flatten().map(|item| item.path()) {
            let ours = path
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| n.starts_with(TEMPORARY));
            let age = std::fs::metadata(&path).map(|m| used(&m).elapsed().unwrap_or_default());
            if ours && age.is_ok_and(|age| age > ABANDONED) {
                self.delete(&path);
            }
        }
    }
}

/// The folder that the environment variable `variable` names, else `transformer-lite/name` where the system keeps
/// a user's caches. `None` where the environment names neither.
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

/// Notes that a file was used, unless that was noted within the last day.
fn touch(path: &Path, metadata: &Metadata) {
    if used(metadata).elapsed().is_ok_and(|age| age > DAY) {
        let touched = File::open(path).and_then(|f| f.set_modified(SystemTime::now()));
        touched.unwrap_or_else(|e| log::debug!("time of {}: {e}", path.display()));
    }
}

/// How somebody else can write to a folder, or change who can.
#[cfg(unix)]
fn exposed(folder: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, user) = (folder.uid(), rustix::process::geteuid().as_raw());
    // With the sticky bit too, others can make files of names that are looked for.
    let others = folder.mode() & 0o022;
    if owner != user {
        return Some(format!("it belongs to user {owner}, this is user {user}"));
    }
    (others != 0).then(|| {
        let mode = folder.mode() & 0o7777;
        format!("others can write it (mode {mode:04o}; `chmod go-w` ends that)")
    })
}

/// Elsewhere a user's folders are the user's own by how they are inherited.
#[cfg(not(unix))]
fn exposed(_: &Metadata) -> Option<String> {
    None
}

/// Makes a folder that nobody else can write, where there is none: drivers run what is in it.
fn create_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

#[cfg(test)]
mod tests;
