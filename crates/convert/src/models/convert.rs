//! Conversions into a models folder.

use super::digest::{Hash, is_sha256, sha256};
use super::entry::{self, Entry, LAYOUT, Manifest, Origin, Stamp};
use super::hub::{Fetched, HubError, PREFIX, Spec};
use super::{Event, ModelStore, OnEvent};
use crate::checkpoint::{Progress, Summary, folder as checkpoint, tokenizer};
use crate::gguf::split::PartName;
use crate::gguf::{self, Gguf};
use crate::lock;
use crate::new_folder::{self, CONVERT, NewFolder, REMOVED, set_aside};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};

/// The folder of lock files. They are empty, one for each source that was ever converted, and never
/// removed: a lock file that is removed while another process opens it locks nothing.
const LOCKS: &str = ".locks";
/// The lock that is held while a name is chosen and taken.
const NAMES: &str = "names";
/// Digits of a key in names of temporary folders and of lock files.
const KEY_DIGITS: usize = 32;
/// Digits of a key in the name of an entry whose plain name is taken.
const NAME_DIGITS: usize = 8;
/// Characters of a name.
const NAME_LENGTH: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceFormat {
    Gguf,
    Checkpoint,
}

pub(super) struct Source {
    form: SourceFormat,
    /// The file or folder.
    path: PathBuf,
    /// The files that its content is in.
    files: Vec<PathBuf>,
    /// Name that the entry gets where it is free.
    name: String,
    /// What it is called in the manifest.
    label: String,
    /// Names on the hub by which it is found again.
    pulled: Vec<Origin>,
    /// The digest of a single file as the hub tells it.
    claimed: Option<String>,
    /// Digests of files that were computed while they were downloaded.
    known: Vec<(PathBuf, String)>,
}

impl Source {
    /// A GGUF file or the folder of a checkpoint. Errors: a file that is damaged or not supported,
    /// which is found out before anything is hashed or written.
    pub(super) fn local(path: &Path) -> Result<Self> {
        let absolute = std::path::absolute(path).map_err(|e| Error::io("cannot read", path, e))?;
        let label = absolute.display().to_string();
        Self::new(path, &absolute, label, Vec::new())
    }

    /// What was downloaded for `spec`.
    pub(super) fn hub(fetched: Fetched, spec: &Spec) -> Result<Self> {
        let places = [spec.to_string(), fetched.name.clone()];
        let mut pulled: Vec<Origin> = places
            .map(|source| Origin {
                source,
                files: Vec::new(),
            })
            .into();
        pulled.dedup();
        let mut source = Self::new(&fetched.path, &fetched.path, fetched.name, pulled)?;
        // The hub tells the digests of single files only.
        source.claimed = fetched.claimed.filter(|_| source.files.len() == 1);
        source.known = fetched.verified;
        if source.form == SourceFormat::Checkpoint {
            // The folder of a snapshot has the name of a commit.
            source.name = clean(spec.repo().rsplit('/').next().unwrap_or_default());
        }
        Ok(source)
    }

    fn new(path: &Path, named: &Path, label: String, pulled: Vec<Origin>) -> Result<Self> {
        let (form, files, name) = if path.is_dir() {
            checkpoint::supported(path)?;
            tokenizer::check(path)?;
            let files = checkpoint::sources(path)?;
            (SourceFormat::Checkpoint, files, named.file_name())
        } else {
            let gguf = Gguf::open(path)?;
            gguf::supported(&gguf)?;
            (SourceFormat::Gguf, gguf.paths(), named.file_stem())
        };
        let name = name.unwrap_or_default().to_string_lossy();
        // The model has the name that its parts share.
        let part = named.file_name().and_then(|n| n.to_str()).and_then(PartName::of);
        let name = part.map_or(&*name, |part| part.stem());
        Ok(Self {
            form,
            path: path.to_owned(),
            files,
            name: clean(name),
            label,
            pulled,
            claimed: None,
            known: Vec::new(),
        })
    }

    fn stamps(&self) -> Result<Vec<Stamp>> {
        self.files.iter().map(|path| Stamp::of(path)).collect()
    }

    /// The places at which it is found from now on.
    fn places(&self, stamps: &[Stamp]) -> Vec<Origin> {
        let here = self.label.starts_with(PREFIX).then(Vec::new);
        let here = here.unwrap_or_else(|| {
            vec![Origin {
                source: self.label.clone(),
                files: stamps.to_vec(),
            }]
        });
        here.into_iter().chain(self.pulled.iter().cloned()).collect()
    }

    /// The SHA-256 of a GGUF file, or that of the names and digests of several files.
    fn key(&self, total: u64, on_event: OnEvent<'_>) -> Result<String> {
        let mut done = 0;
        let mut digest = |path: &Path| {
            if let Some((_, known)) = self.known.iter().find(|(file, _)| file == path) {
                return Ok(known.clone());
            }
            let found = sha256(path, |bytes| {
                done += bytes;
                on_event(Event::Hashing {
                    name: &self.name,
                    done,
                    total,
                });
            })?;
            self.check_download(path, &found)?;
            Ok::<_, Error>(found)
        };
        let mut parts = self
            .files
            .iter()
            .map(|path| Ok((path.file_name().unwrap_or_default().to_owned(), digest(path)?)))
            .collect::<Result<Vec<_>>>()?;
        if let (SourceFormat::Gguf, [(_, digest)]) = (self.form, parts.as_slice()) {
            return Ok(digest.clone());
        }
        parts.sort();
        let mut all = Hash::default();
        for (name, digest) in parts {
            all.update(format!("{}\0{digest}\n", name.display()).as_bytes());
        }
        Ok(all.finish())
    }

    /// An error where a file in the hub's cache, which is named by its digest, has another one.
    fn check_download(&self, path: &Path, found: &str) -> Result<()> {
        if !self.label.starts_with(PREFIX) {
            return Ok(());
        }
        let real = std::fs::canonicalize(path).map_err(|e| Error::io("cannot read", path, e))?;
        let named = real.file_name().and_then(|n| n.to_str()).filter(|n| is_sha256(n));
        match named {
            Some(expected) if expected != found => Err(HubError::Checksum {
                file: real.display().to_string(),
                expected: expected.to_owned(),
                found: found.to_owned(),
                todo: "remove that file and run `tlite pull` again",
            }
            .into_error()),
            _ => Ok(()),
        }
    }

    fn convert_into(&self, folder: &Path, on_event: OnEvent<'_>) -> Result<Summary> {
        let mut progress = |p: Progress<'_>| {
            on_event(Event::Converting {
                name: &self.name,
                done: p.done,
                total: p.total,
            });
        };
        match self.form {
            SourceFormat::Gguf => gguf::convert_into(&self.path, folder, true, &mut progress),
            SourceFormat::Checkpoint => checkpoint::convert_into(&self.path, folder, &mut progress),
        }
    }
}

/// A name for a folder, made of what a file is called.
fn clean(name: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    let name: String = name.trim_matches(['.', '-']).chars().take(NAME_LENGTH).collect();
    if name.is_empty() { "model".to_owned() } else { name }
}

impl ModelStore {
    /// The entry of `source`, which is converted where there is none.
    pub(super) fn convert(&self, source: &Source, on_event: OnEvent<'_>) -> Result<Entry> {
        self.sweep();
        let stamps = source.stamps()?;
        let places = source.places(&stamps);
        if let Some(entry) = self.at(&places, &stamps)? {
            entry.touch();
            return Ok(entry);
        }
        if let Some(claimed) = &source.claimed
            && let Some(entry) = self.with_key(claimed, &places)?
        {
            return Ok(entry);
        }
        let bytes = stamps.iter().map(|s| s.bytes).sum();
        let key = source.key(bytes, on_event)?;
        if let Some(entry) = self.with_key(&key, &places)? {
            return Ok(entry);
        }
        let digits = key.get(..KEY_DIGITS).unwrap_or(&key);
        let _lock = self.lock(digits, || on_event(Event::Waiting { name: &source.name }))?;
        // Another process may have made it meanwhile.
        if let Some(entry) = self.with_key(&key, &places)? {
            return Ok(entry);
        }
        let made = self.convert_locked(source, &stamps, &key, on_event);
        made.map_err(|e| self.explained(e, &source.label))
    }

    /// Converts `source`, whose lock is held.
    fn convert_locked(
        &self,
        source: &Source,
        stamps: &[Stamp],
        key: &str,
        on_event: OnEvent<'_>,
    ) -> Result<Entry> {
        let digits = key.get(..KEY_DIGITS).unwrap_or(key);
        // The name is chosen at the end; until then it only has to be free.
        let mut new = NewFolder::create(&self.folder.join(digits), CONVERT)?;
        on_event(Event::Begin {
            folder: new.temporary(),
            name: &source.name,
        });
        let summary = source.convert_into(new.path(), on_event)?;
        if source.stamps()? != stamps {
            let what = format!("{} changed while it was converted; try again", source.label);
            return Err(Error::other(Stage::Convert, what));
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut manifest = Manifest {
            layout: LAYOUT,
            name: String::new(),
            source: source.label.clone(),
            source_bytes: stamps.iter().map(|s| s.bytes).sum(),
            bits: bits(&summary),
            architecture: summary.architecture,
            parameters: summary.parameters,
            types: summary.source_types,
            created: now.map_or(0, |d| d.as_secs()),
            key: key.to_owned(),
            places: Vec::new(),
        };
        let places = source.places(stamps);
        entry::add_places(&mut manifest.places, &places);

        let _lock = self.lock(NAMES, || ())?;
        manifest.name = self.take_name(source, key, &places)?;
        entry::write(new.path(), &manifest)?;
        let folder = self.folder.join(&manifest.name);
        new.rename_output(folder.clone())?;
        new.commit()?;
        Entry::read(&folder).ok_or_else(|| Error::file(Stage::Convert, &folder, "is not a converted model"))
    }

    /// A free name for the entry of `source`. Entries that it takes the place of are removed: those
    /// of the same content and another layout, and one of the same name that nothing leads to any
    /// more.
    fn take_name(&self, source: &Source, key: &str, places: &[Origin]) -> Result<String> {
        for mut entry in self.entries()? {
            entry.forget(places);
            let stale = entry.name() == source.name && entry.manifest().places.is_empty();
            if entry.manifest().key == key || stale {
                self.set_aside(&entry)?;
            }
        }
        let digits = key.get(..NAME_DIGITS).unwrap_or(key);
        let others = (2..).map(|n| format!("{}-{digits}-{n}", source.name));
        let names = [source.name.clone(), format!("{}-{digits}", source.name)];
        let free = |name: &String| std::fs::symlink_metadata(self.folder.join(name)).is_err();
        let name = names.into_iter().chain(others).find(free);
        Ok(name.unwrap_or_else(|| key.to_owned()))
    }

    /// The entry that was made of this version of the source.
    fn at(&self, places: &[Origin], stamps: &[Stamp]) -> Result<Option<Entry>> {
        // A name on the hub does not tell which version it is.
        let known = |e: &Entry| {
            e.is_current()
                && places
                    .iter()
                    .any(|p| p.files == stamps && e.manifest().places.contains(p))
        };
        Ok(self.entries()?.into_iter().find(known))
    }

    /// The entry of this content, which remembers `places` from now on.
    fn with_key(&self, key: &str, places: &[Origin]) -> Result<Option<Entry>> {
        let of_key = |e: &Entry| e.is_current() && e.manifest().key == key;
        if !self.entries()?.iter().any(of_key) {
            return Ok(None);
        }
        // Another process may replace an entry while its manifest is written. A folder that cannot
        // be written has no such process.
        let lock = self.lock(NAMES, || ());
        let _lock = lock.unwrap_or_else(|e| {
            log::debug!("{}", e.chain());
            None
        });
        let (mut found, others): (Vec<Entry>, Vec<Entry>) = self.entries()?.into_iter().partition(of_key);
        let Some(mut entry) = found.pop() else {
            return Ok(None);
        };
        for mut other in others {
            other.forget(places);
        }
        entry.remember(places);
        entry.touch();
        Ok(Some(entry))
    }

    /// Takes the lock of this name, or waits for it after a call of `waiting`. `None` on a system
    /// without locks.
    fn lock(&self, name: &str, waiting: impl FnOnce()) -> Result<Option<File>> {
        let folder = self.folder.join(LOCKS);
        std::fs::create_dir_all(&folder).map_err(|e| self.unwritable(&e))?;
        let file = lock::open(&folder.join(name)).map_err(|e| self.unwritable(&e))?;
        Ok(lock::wait_for(&file, waiting)
            .map_err(|e| log::debug!("cannot lock a file in {}: {e}", folder.display()))
            .is_ok()
            .then_some(file))
    }

    /// Removes temporary folders that dead processes left. What cannot be removed stays.
    pub fn sweep(&self) {
        let Ok(list) = std::fs::read_dir(&self.folder) else {
            return;
        };
        for item in list.flatten() {
            if item.file_name().to_string_lossy().starts_with(REMOVED) {
                remove(&item.path());
            }
        }
        new_folder::sweep(&self.folder);
    }

    /// Takes an entry away at once, then removes its files.
    pub(super) fn set_aside(&self, entry: &Entry) -> Result<()> {
        let aside = set_aside(entry.folder());
        remove(&aside.map_err(|e| Error::io("cannot remove", entry.folder(), e))?);
        Ok(())
    }

    fn unwritable(&self, e: &std::io::Error) -> Error {
        let what = format!(
            "cannot write to the models folder {}: {e}; to use another folder, set TLITE_MODELS",
            self.folder.display()
        );
        Error::other(Stage::Convert, what).of_kind(ErrorKind::Io)
    }

    /// `error` of a conversion, where it is that of the models folder.
    fn explained(&self, error: Error, label: &str) -> Error {
        match &error {
            Error::Io { path, source, .. } if path.starts_with(&self.folder) => {
                let what = format!(
                    "cannot convert {label}: cannot write to the models folder {}: {source}; free space with \
                     `tlite rm`, or set TLITE_MODELS to another folder",
                    self.folder.display()
                );
                Error::other(Stage::Convert, what).of_kind(ErrorKind::Io)
            }
            _ => error,
        }
    }
}

fn remove(folder: &Path) {
    let removed = std::fs::remove_dir_all(folder);
    removed.unwrap_or_else(|e| log::debug!("cannot remove {}: {e}", folder.display()));
}

/// Bits of a weight on average, to two digits.
fn bits(summary: &Summary) -> f64 {
    let bits = summary.data_bytes as f64 * 8.0 / (summary.parameters.max(1)) as f64;
    (bits * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests;
