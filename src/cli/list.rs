//! `tlite list`.

use super::cache::{age_text, fitted};
use super::output::{put, put_json, table};
use crate::error::Result;
use crate::models::hub::{Cached, Hub};
use crate::models::{Entry, ModelStore};
use crate::units::{count_text, size_text};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

/// List the models that were downloaded or converted
///
/// Each name can be given as MODEL. Names that begin with hf: are files in the cache of the Hugging
/// Face Hub that are not converted yet; their first use converts them.
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

/// An entry in JSON.
#[derive(Debug, Serialize)]
pub struct Row<'a> {
    name: &'a str,
    folder: String,
    /// Bytes on disk.
    bytes: u64,
    source: &'a str,
    source_bytes: u64,
    architecture: &'a str,
    parameters: u64,
    /// Of a weight, on average.
    bits: f64,
    source_types: &'a BTreeMap<String, usize>,
    /// Seconds since 1970.
    created: u64,
    /// Seconds since 1970.
    used: u64,
    layout: u32,
    /// False where the next use converts the source anew.
    current: bool,
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

/// A file in the hub's cache in JSON.
#[derive(Debug, Serialize)]
struct Download {
    name: String,
    path: String,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    folder: String,
    bytes: u64,
    models: Vec<Row<'a>>,
    /// Files in the hub's cache that are not converted.
    downloads: Vec<Download>,
}

/// The GGUF files in the hub's cache of which no entry was made.
pub fn unconverted(entries: &[Entry]) -> Vec<Cached> {
    let mut cached = Hub::from_env().map(|hub| hub.cached()).unwrap_or_default();
    cached.retain(|c| {
        let name = c.spec.to_string();
        let of_it = |e: &Entry| e.is_current() && e.manifest().places.iter().any(|p| p.source == name);
        !entries.iter().any(of_it)
    });
    cached
}

/// `text` without control characters, which paths may have.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

fn text(entries: &[Entry], downloads: &[Cached], now: SystemTime, terminal: bool) -> String {
    let cells = |cells: [&str; 5]| cells.map(printable).to_vec();
    let mut rows = vec![cells(["name", "source", "bits", "size", "used"])];
    rows.extend(entries.iter().map(|e| {
        let age = now.duration_since(e.used()).unwrap_or(Duration::ZERO);
        let source = match e.is_current() {
            true => e.manifest().source.clone(),
            false => format!("{} (converted anew at the next use)", e.manifest().source),
        };
        cells([
            e.name(),
            &source,
            &format!("{:.1}", e.manifest().bits),
            &size_text(e.bytes()),
            &format!("{} ago", age_text(age.as_secs())),
        ])
    }));
    rows.extend(downloads.iter().map(|d| {
        let name = d.spec.to_string();
        cells([&name, "downloaded, not converted", "-", &size_text(d.bytes), "-"])
    }));
    table(&if terminal { fitted(rows, 1) } else { rows }, 2)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let store = ModelStore::open_default()?;
    store.sweep();
    let entries = store.entries()?;
    let downloads = unconverted(&entries);
    let folder = store.folder().display().to_string();
    let bytes = entries.iter().map(Entry::bytes).sum();
    let mut out = std::io::stdout().lock();
    if args.json {
        let downloads = downloads.iter().map(|d| Download {
            name: d.spec.to_string(),
            path: d.path.display().to_string(),
            bytes: d.bytes,
        });
        let report = Report {
            folder,
            bytes,
            models: entries.iter().map(Row::new).collect(),
            downloads: downloads.collect(),
        };
        return put_json(&mut out, &report);
    }
    let folder = printable(&folder);
    if entries.is_empty() && downloads.is_empty() {
        let what = "`tlite pull OWNER/REPO` downloads one, `tlite chat FILE.gguf` converts one";
        return put(&mut out, &format!("{folder}: no models yet; {what}\n"));
    }
    let head = format!(
        "{folder}: {}, {}\n",
        count_text(entries.len(), "model"),
        size_text(bytes)
    );
    let terminal = std::io::stdout().is_terminal();
    put(
        &mut out,
        &(head + &text(&entries, &downloads, SystemTime::now(), terminal)),
    )
}
