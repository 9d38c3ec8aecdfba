//! The models folder: GGUF files and checkpoints, converted once and found again.
//!
//! [`ModelStore::resolve`] turns what a user types into a folder with `model.onnx`:
//!
//! | typed | result |
//! |---|---|
//! | a folder with `model.onnx`, or an ONNX file | the same path |
//! | a GGUF file, or a folder with `config.json` and `safetensors` files | its entry, converted on first use |
//! | `hf:OWNER/REPO[:FILE]` | the entry of that model on the Hugging Face Hub, downloaded and converted on first use |
//! | the name of an entry | the entry |
//!
//! An [`Entry`] is a folder with the converted model and a [`Manifest`]. Its key is the SHA-256 of
//! the source's content; entries of another [`LAYOUT`] are not used. A source is not hashed again
//! while the size, the times and the inode of its files stay the same.
//!
//! A conversion writes into a temporary folder, which is renamed when it is complete. It holds a
//! file lock, so other processes wait for it and use its result. Temporary folders whose lock is
//! free belong to dead processes; they are removed at the next start.
//!
//! [`hub`] downloads files.

mod convert;
mod digest;
mod entry;
#[cfg_attr(
    not(all(feature = "hub", not(target_os = "android"))),
    allow(dead_code, unused_imports, reason = "for the client, which is not built here")
)]
pub mod hub;

pub use entry::{Entry, LAYOUT, Manifest, Origin, Stamp};

use crate::checkpoint::folder::is_checkpoint;
use convert::Source;
use hub::{Hub, Spec};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::cache::named_folder;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::files::kind::is_gguf;
use transformer_lite::{LoadOptions, Model};

/// The environment variable that names the models folder.
pub const FOLDER_VARIABLE: &str = "TLITE_MODELS";

/// What happens while a model is made ready. Times and bytes are for progress reports; nothing
/// depends on them.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another process is converting or downloading this; the call waits until it is done.
    Waiting {
        /// What the other process works on.
        name: &'a str,
    },
    /// A source is read to learn whether its content is known.
    Hashing {
        name: &'a str,
        /// Bytes read.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A conversion begins. Whoever ends the process before the call returns may remove this
    /// folder.
    Begin { folder: &'a Path, name: &'a str },
    /// Weights are written.
    Converting {
        name: &'a str,
        /// Bytes written, each weight counted as an `f32`.
        done: u64,
        /// Bytes in all, counted likewise.
        total: u64,
    },
    /// A file is downloaded.
    Downloading {
        /// Its name in the repository.
        file: &'a str,
        /// Bytes on the disk.
        done: u64,
        /// Bytes in all, if the server tells.
        total: Option<u64>,
    },
    /// A request failed and is repeated.
    Retrying {
        why: &'a str,
        /// Seconds until then.
        seconds: f64,
    },
    /// The hub cannot be reached; a file that was downloaded before is used.
    Offline { why: &'a str },
}

/// Receives [`Event`]s.
pub type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelStore {
    folder: PathBuf,
}

impl ModelStore {
    /// The models folder `folder`, which need not exist. Nothing is read or written yet.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The user's models folder: what [`FOLDER_VARIABLE`] names, else `transformer-lite/models`
    /// where the system keeps a user's caches. A usage error where the environment names neither.
    pub fn open_default() -> Result<Self> {
        let folder = named_folder(FOLDER_VARIABLE, "models");
        folder.map(Self::new).ok_or_else(|| {
            let what =
                "is not set, and the system names no folder for caches; set it to a folder for converted models";
            Error::usage(FOLDER_VARIABLE, what)
        })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All entries, by name. A folder that does not exist has none. An error where it cannot be
    /// read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = entry::read_all(&self.folder)?;
        entries.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(entries)
    }

    /// The entry of this name: the exact one, else the only one that differs in case.
    pub fn find(&self, name: &str) -> Result<Option<Entry>> {
        let mut entries = self.entries()?;
        if let Some(at) = entries.iter().position(|e| e.name() == name) {
            return Ok(Some(entries.swap_remove(at)));
        }
        entries.retain(|e| e.name().eq_ignore_ascii_case(name));
        Ok(entries.pop().filter(|_| entries.is_empty()))
    }

    /// The folder with `model.onnx` that `model` stands for, or the ONNX file; see the module
    /// documentation. A path that is something else is returned as it is, so that errors about it
    /// come from whoever loads it.
    ///
    /// Usage errors: nothing of this name; a malformed `hf:` name. Other errors: those of a
    /// conversion or a download; a models folder that cannot be written.
    pub fn resolve(&self, model: &Path, on_event: OnEvent<'_>) -> Result<PathBuf> {
        let text = model.to_str();
        if let Some(name) = text.filter(|t| hub::is_address(t)) {
            let spec: Spec = name.parse()?;
            return Ok(self.pull_once(&spec, on_event)?.folder().to_owned());
        }
        if is_source(model) {
            return Ok(self.import(model, on_event)?.folder().to_owned());
        }
        if model.is_file() || model.join("model.onnx").is_file() {
            return Ok(model.to_owned());
        }
        if let Some(entry) = text.map(|name| self.find(name)).transpose()?.flatten() {
            return Ok(self.current(entry, on_event)?.folder().to_owned());
        }
        if model.exists() {
            return Ok(model.to_owned());
        }
        Err(Error::usage("model", unknown(model)))
    }

    /// The entry of the GGUF file or checkpoint folder `path`, which is converted where its content
    /// is not known. Errors as of [`crate::gguf::convert`] and
    /// [`crate::checkpoint::folder::convert`]; a models folder that cannot be written. After an
    /// error nothing is left.
    pub fn import(&self, path: &Path, on_event: OnEvent<'_>) -> Result<Entry> {
        self.convert(&Source::local(path)?, on_event)
    }

    /// As [`ModelStore::import`], of a model on the hub. `fresh` asks the hub for the present
    /// version; otherwise an entry or a file that was downloaded before is used without a look at
    /// the network. Errors also as of [`hub::HubError`].
    pub fn pull(&self, hub: &Hub, spec: &Spec, fresh: bool, on_event: OnEvent<'_>) -> Result<Entry> {
        if let Some(entry) = self.pulled(spec)?.filter(|_| !fresh) {
            entry.touch();
            return Ok(entry);
        }
        let source = Source::hub(hub.fetch(spec, fresh, on_event)?, spec)?;
        self.convert(&source, on_event)
    }

    /// The entry of a model on the hub that is ready to use, if there is one.
    pub fn pulled(&self, spec: &Spec) -> Result<Option<Entry>> {
        let name = spec.to_string();
        let known = |e: &Entry| e.is_current() && e.manifest().places.iter().any(|p| p.source == name);
        Ok(self.entries()?.into_iter().find(known))
    }

    /// Removes an entry. It disappears at once; a process that has it open keeps its files, where
    /// the system allows that. An error where it cannot be removed.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        self.set_aside(entry)
    }

    fn pull_once(&self, spec: &Spec, on_event: OnEvent<'_>) -> Result<Entry> {
        if let Some(entry) = self.pulled(spec)? {
            entry.touch();
            return Ok(entry);
        }
        self.pull(&Hub::from_env()?, spec, false, on_event)
    }

    /// `entry`, or what its source is converted to where the entry is of another layout.
    fn current(&self, entry: Entry, on_event: OnEvent<'_>) -> Result<Entry> {
        if entry.is_current() {
            entry.touch();
            return Ok(entry);
        }
        let source = &entry.manifest().source;
        if source.starts_with(hub::PREFIX) {
            return self.pull_once(&source.parse()?, on_event);
        }
        let path = Path::new(source);
        if path.exists() {
            return self.import(path, on_event);
        }
        let what = format!(
            "{} was converted by another version of tlite, and its source {source} no longer exists; \
             expected a model of layout {LAYOUT}; restore the source or remove the model with `tlite rm`",
            entry.name()
        );
        Err(Error::usage("model", what))
    }
}

/// The folder with `model.onnx` that `model` stands for, or the ONNX file, by the user's models
/// folder ([`ModelStore::open_default`], [`ModelStore::resolve`]). Without one, what needs no
/// conversion can still be used.
pub fn resolve(model: &Path, on_event: OnEvent<'_>) -> Result<PathBuf> {
    match ModelStore::open_default() {
        Ok(store) => store.resolve(model, on_event),
        Err(_) if model.exists() && !is_source(model) => Ok(model.to_owned()),
        Err(e) => Err(e),
    }
}

/// Loads a language model by what a user types ([`ModelStore::resolve`]): a model folder, a GGUF
/// file, the folder of a checkpoint, `hf:OWNER/REPO`, or the name of a model in the models folder.
/// What must be converted is converted once, into the same models folder and under the same locks
/// as by the command, and logged. Errors are those of [`resolve`] and [`Model::load`].
pub fn load(model: impl AsRef<Path>, options: &LoadOptions) -> Result<Model> {
    let folder = resolve(model.as_ref(), &mut |event| match event {
        Event::Begin { name, .. } => log::info!("converting {name} for its first use"),
        Event::Waiting { name } => log::info!("waiting for another process that prepares {name}"),
        Event::Retrying { why, seconds } => log::warn!("{why}; trying again in {seconds:.1} s"),
        Event::Offline { why } => log::warn!("{why}; using the files downloaded earlier"),
        Event::Hashing { .. } | Event::Converting { .. } | Event::Downloading { .. } => {}
    })?;
    Model::load(folder, options)
}

/// True for a GGUF file, and for the folder of a checkpoint without `model.onnx`: what
/// [`ModelStore::import`] converts.
pub fn is_source(path: &Path) -> bool {
    let named = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    match path.is_dir() {
        true => !path.join("model.onnx").is_file() && is_checkpoint(path),
        false => path.is_file() && (named || is_gguf(path)),
    }
}

/// What to say where nothing has the name `model`.
fn unknown(model: &Path) -> String {
    let shown = model.display();
    let what = format!("there is no folder, file or model named {shown}");
    match model.to_str().map(str::parse::<Spec>) {
        Some(Ok(_)) => format!("{what}; for the Hugging Face Hub, write hf:{shown}"),
        _ => format!("{what}; `tlite list` shows the models here, `tlite pull OWNER/REPO` downloads one"),
    }
}
