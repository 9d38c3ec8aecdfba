//! Finished weights and precomputed numbers, kept beside the output until it is complete, so that
//! an interrupted run can resume.
//!
//! A part consists of two files: the data (such as quantized values and scales) and a record of its
//! inputs and checksum. The record is written last. A part with a record or checksum that does not
//! match is made again.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::files::read::read_config;
use transformer_lite::unstable::graph::onnx::weights::map;
use transformer_lite::unstable::mapped::Mapped;
use transformer_lite::unstable::quant::Loss;
use transformer_lite::unstable::tensor::Bytes;

const FOLDER: &str = "parts";

/// The parts of one run, which holds the lock of the folder that they are in.
pub(super) struct Parts {
    folder: PathBuf,
}

/// Inputs, layout and loss of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Everything the part depends on.
    pub key: String,
    /// Bytes of quantized values; the rest of the part is scales.
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

/// Record of precomputed numbers.
#[derive(Serialize, Deserialize)]
struct Numbers {
    key: String,
    /// Length of each list.
    lengths: Vec<usize>,
    crc32: u32,
}

pub(super) struct QuantizedWeight {
    bytes: Mapped,
    pub record: Record,
}

impl QuantizedWeight {
    pub fn codes(&self) -> &[u8] {
        self.bytes.bytes().get(..self.record.codes).unwrap_or_default()
    }

    pub fn scales(&self) -> &[u8] {
        self.bytes.bytes().get(self.record.codes..).unwrap_or_default()
    }
}

impl Parts {
    /// Opens or creates the folder of parts in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let parts = folder.join(FOLDER);
        std::fs::create_dir_all(&parts).map_err(|e| Error::io("cannot create", &parts, e))?;
        Ok(Self { folder: parts })
    }

    /// True if anything is finished.
    pub fn any(&self) -> bool {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries
            .into_iter()
            .any(|e| e.path().extension().is_some_and(|e| e == "json"))
    }

    fn paths(&self, name: &str) -> (PathBuf, PathBuf) {
        let file = |ending: &str| self.folder.join(format!("{name}.{ending}"));
        (file("bin"), file("json"))
    }

    /// The record with this name and its data, if both exist.
    fn read<R: DeserializeOwned>(&self, name: &str) -> Option<(R, Mapped)> {
        let (data, record) = self.paths(name);
        let record = serde_json::from_slice(&read_config(&record).ok()?).ok()?;
        Some((record, map(&data).ok()?))
    }

    /// Writes the data, then its record.
    fn write(&self, name: &str, record: &impl Serialize, data: &[&[u8]]) -> Result<()> {
        let (path, place) = self.paths(name);
        let text = serde_json::to_vec(record)
            .map_err(|e| Error::parse(Stage::Quantize, &place, "cannot encode the record", e))?;
        let failed = |path: &Path, e| Error::io("cannot write", path, e);
        let write = || -> std::io::Result<()> {
            use std::io::Write;
            let mut file = File::create(&path)?;
            for part in data {
                file.write_all(part)?;
            }
            file.sync_data()
        };
        write().map_err(|e| failed(&path, e))?;
        std::fs::write(&place, text).map_err(|e| failed(&place, e))
    }

    /// The part of weight `index`, if it matches `key` and is intact.
    pub fn finished(&self, index: usize, key: &str) -> Option<QuantizedWeight> {
        let (record, bytes): (Record, _) = self.read(&index.to_string())?;
        let whole = record.key == key
            && bytes.bytes().len() == record.length
            && record.codes <= record.length
            && crc32fast::hash(bytes.bytes()) == record.crc32;
        whole.then_some(QuantizedWeight { bytes, record })
    }

    /// Stores the part of weight `index`.
    pub fn keep(&self, index: usize, record: &Record, codes: &[u8], scales: &[u8]) -> Result<()> {
        self.write(&index.to_string(), record, &[codes, scales])
    }

    /// Numbers stored by [`Self::remember`], if they match `key` and are intact. `name` must not be
    /// a number.
    pub fn recall(&self, name: &str, key: &str) -> Option<Vec<Vec<f32>>> {
        let (record, bytes): (Numbers, _) = self.read(name)?;
        let (words, rest) = bytes.bytes().as_chunks::<4>();
        let sum = record
            .lengths
            .iter()
            .try_fold(0usize, |sum, n| sum.checked_add(*n));
        if record.key != key
            || !rest.is_empty()
            || sum != Some(words.len())
            || crc32fast::hash(bytes.bytes()) != record.crc32
        {
            return None;
        }
        let mut words = words.iter().map(|w| f32::from_le_bytes(*w));
        let lists = record.lengths.iter().map(|n| words.by_ref().take(*n).collect());
        Some(lists.collect())
    }

    /// Stores numbers that were computed before any weight was made.
    pub fn remember(&self, name: &str, key: &str, numbers: &[Vec<f32>]) -> Result<()> {
        let bytes: Vec<u8> = numbers.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        let record = Numbers {
            key: key.to_owned(),
            lengths: numbers.iter().map(Vec::len).collect(),
            crc32: crc32fast::hash(&bytes),
        };
        self.write(name, &record, &[&bytes])
    }
}
