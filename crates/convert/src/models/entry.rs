//! Entries of a models folder.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::read::read_config;
use transformer_lite::unstable::files::temporary;

/// The version of what conversions write into an entry. It is raised whenever the files of a new
/// version of the converter differ from those of the old one; entries of another layout are
/// converted anew.
pub const LAYOUT: u32 = 1;

/// The file with the manifest of an entry. Its time of modification is that of the entry's last
/// use.
pub(super) const MANIFEST: &str = "manifest.json";

/// Places that an entry remembers; the oldest are forgotten.
const PLACES: usize = 16;

/// The time of the last use is kept to this.
const MINUTE: Duration = Duration::from_secs(60);

/// What an entry was made of, as its `manifest.json` tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// See [`LAYOUT`].
    pub layout: u32,
    /// Name of the entry, which is that of its folder.
    pub name: String,
    /// The file or folder that was converted, or `hf:OWNER/REPO:FILE`.
    pub source: String,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// Architecture, such as `llama`.
    pub architecture: String,
    /// Number of weights.
    pub parameters: u64,
    /// Bits that a weight takes on average, scales and zero points included.
    pub bits: f64,
    /// Number of tensors of each type in the source.
    pub types: BTreeMap<String, usize>,
    /// Seconds since 1970 when it was converted.
    pub created: u64,
    /// SHA-256 of the content of the source.
    pub key: String,
    /// Where this content was found, the latest last.
    pub places: Vec<Origin>,
}

/// Where the source of an entry was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// An absolute path, or a name on the hub.
    pub source: String,
    /// Its files; none for a name on the hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<Stamp>,
}

/// Which version of a file it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub path: String,
    pub bytes: u64,
    /// Nanoseconds since 1970 when its content was written.
    pub modified: i64,
    /// Nanoseconds since 1970 when its content, name or permissions changed; 0 where the system
    /// does not tell.
    pub changed: i64,
    /// Its number in the file system; 0 where the system does not tell.
    pub inode: u64,
}

impl Stamp {
    /// The stamp of a file. An error where it is not there, or is not named in UTF-8.
    pub fn of(path: &Path) -> Result<Self> {
        let cannot = |e| Error::io("cannot read", path, e);
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        let name = path.to_str();
        let name = name.ok_or_else(|| cannot(std::io::Error::other("its name is not UTF-8")))?;
        let (modified, changed, inode) = times(&metadata);
        Ok(Self {
            path: name.to_owned(),
            bytes: metadata.len(),
            modified,
            changed,
            inode,
        })
    }
}

#[cfg(unix)]
fn times(metadata: &Metadata) -> (i64, i64, u64) {
    use std::os::unix::fs::MetadataExt;
    let time = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    let modified = time(metadata.mtime(), metadata.mtime_nsec());
    let changed = time(metadata.ctime(), metadata.ctime_nsec());
    (modified, changed, metadata.ino())
}

#[cfg(not(unix))]
fn times(metadata: &Metadata) -> (i64, i64, u64) {
    let since = metadata
        .modified()
        .ok()
        .and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
    let modified = since.and_then(|d| i64::try_from(d.as_nanos()).ok());
    (modified.unwrap_or_default(), 0, 0)
}

/// A converted model in a models folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    folder: PathBuf,
    manifest: Manifest,
    used: SystemTime,
}

impl Entry {
    /// Its folder, with `model.onnx`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn name(&self) -> &str {
        &self.manifest.name
    }

    /// What it was made of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// When it was last used, to a minute.
    pub fn used(&self) -> SystemTime {
        self.used
    }

    /// True where its files are those that this version of the library writes.
    pub fn is_current(&self) -> bool {
        self.manifest.layout == LAYOUT
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        files
            .filter_map(|item| item.metadata().ok())
            .map(|m| m.len())
            .sum()
    }

    /// The entry in `folder`; `None` where that is not one.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let path = folder.join(MANIFEST);
        let bytes = read_config(&path).ok()?;
        // One of another layout, or damaged: it can be listed and removed, but not used.
        let mut manifest: Manifest = serde_json::from_slice(&bytes).unwrap_or_else(|e| {
            log::debug!("{}: {e}", path.display());
            Manifest::default()
        });
        // The folder may have been renamed.
        folder.file_name()?.to_str()?.clone_into(&mut manifest.name);
        let metadata = std::fs::metadata(&path).ok()?;
        Some(Self {
            folder: folder.to_owned(),
            manifest,
            used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }

    /// Notes that it is used. Where that cannot be written nothing happens.
    pub(super) fn touch(&self) {
        if self.used.elapsed().is_ok_and(|age| age > MINUTE) {
            let file = File::options().write(true).open(self.folder.join(MANIFEST));
            let touched = file.and_then(|f| f.set_modified(SystemTime::now()));
            touched.unwrap_or_else(|e| log::debug!("time of {}: {e}", self.folder.display()));
        }
    }

    /// Remembers `places` in the manifest. Where that cannot be written nothing happens but a
    /// slower next start.
    pub(super) fn remember(&mut self, places: &[Origin]) {
        let mut all = self.manifest.places.clone();
        add_places(&mut all, places);
        self.set_places(all);
    }

    /// Forgets where it was found, for places at which there is something else now.
    pub(super) fn forget(&mut self, places: &[Origin]) {
        let mut all = self.manifest.places.clone();
        all.retain(|old| !places.iter().any(|new| new.source == old.source));
        self.set_places(all);
    }

    fn set_places(&mut self, places: Vec<Origin>) {
        if places != self.manifest.places {
            self.manifest.places = places;
            let written = write(&self.folder, &self.manifest);
            written.unwrap_or_else(|e| log::debug!("{}", e.chain()));
        }
    }
}

/// Adds `new` to `places`, in place of others of the same source.
pub(super) fn add_places(places: &mut Vec<Origin>, new: &[Origin]) {
    places.retain(|old| !new.iter().any(|new| new.source == old.source));
    places.extend_from_slice(new);
    places.drain(..places.len().saturating_sub(PLACES));
}

/// Writes the manifest of the entry in `folder`, whole or not at all.
pub(super) fn write(folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = folder.join(MANIFEST);
    let cannot = |e| Error::io("cannot write", &path, e);
    let text = serde_json::to_vec_pretty(manifest).map_err(|e| cannot(e.into()))?;
    let mut file = temporary::create(folder, 0o666).map_err(cannot)?;
    file.write_all(&text)
        .and_then(|()| file.as_file().sync_all())
        .map_err(cannot)?;
    file.persist(&path).map(drop).map_err(|e| cannot(e.error))
}

/// The entries of a models folder, in no order.
pub(super) fn read_all(folder: &Path) -> Result<Vec<Entry>> {
    let cannot = |e: std::io::Error| {
        let folder = folder.display();
        let what =
            format!("cannot read the models folder {folder}: {e}; to use another folder, set TLITE_MODELS");
        Error::other(Stage::Convert, what).of_kind(transformer_lite::unstable::error::ErrorKind::Io)
    };
    let list = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(cannot)?,
    };
    let mut entries = Vec::new();
    for item in list {
        let item = item.map_err(cannot)?;
        let hidden = item.file_name().to_string_lossy().starts_with('.');
        entries.extend((!hidden).then(|| Entry::read(&item.path())).flatten());
    }
    Ok(entries)
}
