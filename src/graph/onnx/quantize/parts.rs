//! Finished weights, kept beside the output until it is whole, so that an interrupted run goes on where it was.
//!
//! A part is two files: the codes and scales, and a record of what they were made from and of their checksum. The record is written last, and
//! a part whose record does not fit, or whose checksum does not, is made anew.

use crate::error::{Error, Result, Stage};
use crate::graph::onnx::weights::map;
use crate::mapped::Mapped;
use crate::quant::Loss;
use crate::tensor::Bytes;
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

const FOLDER: &str = "parts";

/// The parts of one run. Another run into the same folder is refused while this lives.
pub(super) struct Parts {
    folder: PathBuf,
    _lock: File,
}

/// What a part was made from, and how well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Everything that the part depends on.
    pub key: String,
    /// Bytes of codes; the rest of the part is scales.
    pub codes: usize,
    /// Bytes of the part.
    pub length: usize,
    /// Checksum of the part.
    pub crc32: u32,
    pub count: u64,
    pub max: f32,
    pub absolute: f64,
    pub squared: f64,
    pub weights_squared: f64,
    pub int4: f64,
}

impl Record {
    pub fn loss(&self) -> Loss {
        Loss {
            count: self.count,
            max: self.max,
            absolute: self.absolute,
            squared: self.squared,
            weights_squared: self.weights_squared,
        }
    }
}

/// A finished weight.
pub(super) struct Part {
    bytes: Mapped,
    pub record: Record,
}

impl Part {
    pub fn codes(&self) -> &[u8] {
        self.bytes.bytes().get(..self.record.codes).unwrap_or_default()
    }

    pub fn scales(&self) -> &[u8] {
        self.bytes.bytes().get(self.record.codes..).unwrap_or_default()
    }
}

impl Parts {
    /// Opens or makes the folder of parts in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let parts = folder.join(FOLDER);
        std::fs::create_dir_all(&parts).map_err(|e| Error::io("cannot make", &parts, e))?;
        let path = parts.join("lock");
        let lock = File::create(&path).map_err(|e| Error::io("cannot write", &path, e))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                folder: parts,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(Error::file(
                Stage::Quantize,
                folder,
                "another run is writing this output",
            )),
            Err(TryLockError::Error(e)) => Err(Error::io("cannot lock", &path, e)),
        }
    }

    /// True where at least one part is finished in `folder`.
    pub fn any(folder: &Path) -> bool {
        let entries = std::fs::read_dir(folder.join(FOLDER))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .into_iter()
            .any(|e| e.path().extension().is_some_and(|e| e == "json"))
    }

    fn paths(&self, index: usize) -> (PathBuf, PathBuf) {
        let file = |ending: &str| self.folder.join(format!("{index}.{ending}"));
        (file("bin"), file("json"))
    }

    /// The part of weight `index`, if it was made from what `key` says, and is whole.
    pub fn finished(&self, index: usize, key: &str) -> Option<Part> {
        let (data, record) = self.paths(index);
        let record: Record = serde_json::from_slice(&std::fs::read(record).ok()?).ok()?;
        if record.key != key {
            return None;
        }
        let bytes = map(&data).ok()?;
        let whole = bytes.bytes().len() == record.length
            && record.codes <= record.length
            && crc32fast::hash(bytes.bytes()) == record.crc32;
        whole.then_some(Part { bytes, record })
    }

    /// Keeps the part of weight `index`.
    pub fn keep(&self, index: usize, record: &Record, codes: &[u8], scales: &[u8]) -> Result<()> {
        let (data, place) = self.paths(index);
        let text = serde_json::to_vec(record)
            .map_err(|e| Error::parse(Stage::Quantize, &place, "a record that cannot be written", e))?;
        let failed = |path: &Path, e| Error::io("cannot write", path, e);
        let write = || -> std::io::Result<()> {
            use std::io::Write;
            let mut file = File::create(&data)?;
            file.write_all(codes)?;
            file.write_all(scales)?;
            file.sync_data()
        };
        write().map_err(|e| failed(&data, e))?;
        std::fs::write(&place, text).map_err(|e| failed(&place, e))
    }

    /// Removes all parts: the output has what they hold.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_dir_all(&self.folder).map_err(|e| Error::io("cannot remove", &self.folder, e))
    }
}
