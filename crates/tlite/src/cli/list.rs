//! `tlite list`.

use super::cache::age_text;
use super::output::{fitted_table, print_report};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::fmt::{count_text, size_text};
use transformer_lite_convert::models::hub::{Cached, Hub};
use transformer_lite_convert::models::{Entry, ModelStore};

/// List the models that were downloaded or converted
///
/// Each name can be given as MODEL. Names that begin with hf: are downloads in the cache of the
/// Hugging Face Hub that are not converted yet; their first use converts them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tlite list
  tlite list --json
  TLITE_MODELS=/mnt/models tlite list")]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A converted model. Also the object of `tlite pull --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Row<'a> {
    /// Its name.
    name: &'a str,
    /// Its folder.
    folder: String,
    /// Bytes of its files.
    bytes: u64,
    /// What it was made of: a path, or a name on the Hugging Face Hub.
    source: &'a str,
    /// Bytes of the source.
    source_bytes: u64,
    /// Architecture, such as `llama`.
    architecture: &'a str,
    /// Number of weights.
    parameters: u64,
    /// Bits of a weight on average, scales included.
    bits: f64,
    /// Number of tensors of each type in the source.
    source_types: &'a BTreeMap<String, usize>,
    /// When it was converted, in seconds since 1970.
    created: u64,
    /// When it was last used, in seconds since 1970, to the minute.
    used: u64,
    /// Version of the layout of its files.
    layout: u32,
    /// False if the next use converts the source again.
    current: bool,
    /// SHA-256 of the content of the source.
    key: &'a str,
}

impl<'a> Row<'a> {
    /// The entry as it is.
    pub fn new(entry: &'a Entry) -> Self {
        let m = entry.manifest();
        let used = entry.used().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            name: entry.name(),
            folder: entry.folder().display().to_string(),
            bytes: entry.bytes(),
            source: &m.source,
            source_bytes: m.source_bytes,
            architecture: &m.architecture,
            parameters: m.parameters,
            bits: m.bits,
            source_types: &m.types,
            created: m.created,
            used: used.map_or(0, |d| d.as_secs()),
            layout: m.layout,
            current: entry.is_current(),
            key: &m.key,
        }
    }
}

/// A file in the cache of the Hugging Face Hub.
#[derive(Debug, Serialize, JsonSchema)]
struct Download {
    /// Its name on the hub.
    name: String,
    /// Its path.
    path: String,
    /// Its size.
    bytes: u64,
}

/// The object of `tlite list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report<'a> {
    /// The models folder.
    folder: String,
    /// Bytes of all models.
    bytes: u64,
    /// The models.
    models: Vec<Row<'a>>,
    /// Files that were downloaded and are not converted.
    downloads: Vec<Download>,
}

/// The models in the hub's cache of which no entry was made.
fn unconverted(entries: &[Entry]) -> Vec<Cached> {
    let mut cached = Hub::from_env().map(|hub| hub.cached()).unwrap_or_default();
    cached.retain(|c| {
        let name = c.spec.to_string();
        let of_it = |e: &Entry| e.is_current() && e.manifest().places.iter().any(|p| p.source == name);
        !entries.iter().any(of_it)
    });
    cached
}

fn text(entries: &[Entry], downloads: &[Cached], now: SystemTime) -> String {
    let cells = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![cells(["name", "source", "bits", "size", "used"])];
    rows.extend(entries.iter().map(|e| {
        let age = now.duration_since(e.used()).unwrap_or(Duration::ZERO);
        let source = match e.is_current() {
            true => e.manifest().source.clone(),
            false => format!("{} (converted again at the next use)", e.manifest().source),
        };
        cells([
            e.name(),
            &source,
            &format!("{:.1}", e.manifest().bits),
            &size_text(e.bytes()),
            &match age.as_secs() {
                // The time of the last use is kept to a minute.
                0..60 => "just now".to_owned(),
                seconds => format!("{} ago", age_text(seconds)),
            },
        ])
    }));
    rows.extend(downloads.iter().map(|d| {
        let name = d.spec.to_string();
        cells([&name, "downloaded, not converted", "-", &size_text(d.bytes), "-"])
    }));
    fitted_table(&rows, 2, 1)
}

pub fn run(args: &Args) -> Result<()> {
    let store = ModelStore::open_default()?;
    store.sweep();
    let entries = store.entries()?;
    let downloads = unconverted(&entries);
    let unconverted = downloads.iter().map(|d| Download {
        name: d.spec.to_string(),
        path: d.path.display().to_string(),
        bytes: d.bytes,
    });
    let report = Report {
        folder: store.folder().display().to_string(),
        bytes: entries.iter().map(Entry::bytes).sum(),
        models: entries.iter().map(Row::new).collect(),
        downloads: unconverted.collect(),
    };
    print_report(args.json, &report, || {
        let folder = &report.folder;
        if entries.is_empty() && downloads.is_empty() {
            let what = "`tlite pull OWNER/REPO` downloads one, `tlite chat FILE.gguf` converts one";
            return format!("{folder}: no models yet; {what}\n");
        }
        let (count, size) = (count_text(entries.len(), "model"), size_text(report.bytes));
        let table = text(&entries, &downloads, SystemTime::now());
        format!("{folder}: {count}, {size}\n{table}")
    })
}
