//! `tlite cache`, and the options of commands that use what it shows.

use super::options::whole;
use super::output::{note, put, put_json, table};
use crate::cache::{DEFAULT_LIMIT, Entry, FOLDER_VARIABLE, Kind, Store};
use crate::error::{Error, Result};
use crate::units::{count_text, size_text};
use clap::builder::{PathBufValueParser, PossibleValue, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::SystemTime;

const MB: u64 = 1 << 20;
/// A pebibyte: more than any disk that it could be for.
const MOST_MB: NonZeroU64 = NonZeroU64::MIN.saturating_add((1 << 30) - 1);

/// The cache of compiled kernels.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Execution")]
pub struct CacheOptions {
    /// Neither read nor write compiled kernels on disk
    #[arg(long, conflicts_with_all = ["cache_dir", "cache_mb"])]
    pub no_cache: bool,
    /// Folder for compiled kernels and what was measured of devices [default: `$TLITE_CACHE_DIR`, else a folder where the system keeps caches]
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new().try_map(folder))]
    pub cache_dir: Option<PathBuf>,
    /// Size of that folder beyond which the longest unused files are removed [default: 4096]
    #[arg(long, value_name = "N", value_parser = megabytes, allow_negative_numbers = true)]
    pub cache_mb: Option<NonZeroU64>,
}

/// It was said that the folder cannot be written.
static TOLD: Once = Once::new();

fn folder(path: PathBuf) -> Result<PathBuf, String> {
    match path.exists() && !path.is_dir() {
        true => Err("is a file; expected a folder".to_owned()),
        false => Ok(path),
    }
}

fn megabytes(text: &str) -> Result<NonZeroU64, String> {
    whole(text, NonZeroU64::MIN, MOST_MB)
}

impl CacheOptions {
    /// The store that is asked for; `None` for none, or where no folder is known, which the log says. A note tells where nothing can be
    /// written.
    pub fn store(&self) -> Option<Arc<Store>> {
        if self.no_cache {
            return None;
        }
        self.probes().map(Arc::new)
    }

    /// The same store for what is measured of devices, which `--no-cache` is not about.
    pub fn probes(&self) -> Option<Store> {
        let limit = self.cache_mb.map_or(DEFAULT_LIMIT, |n| n.get() * MB);
        let store = store_in(self.cache_dir.as_ref(), limit)?;
        if let Err(e) = store.try_writing() {
            TOLD.call_once(|| {
                let (option, folder) = (self.folder_option(), store.folder().display());
                let what =
                    format!("note: {option}: cannot write in {folder} ({e}); the next start compiles again");
                note(&mut std::io::stderr(), &what);
            });
        }
        Some(store)
    }

    /// What names the folder.
    fn folder_option(&self) -> &'static str {
        match &self.cache_dir {
            Some(_) => "--cache-dir",
            None if std::env::var_os(FOLDER_VARIABLE).is_some() => FOLDER_VARIABLE,
            None => "the cache",
        }
    }
}

/// The store in the folder that is asked for, else in the user's own; `None` where no folder is known, which the log says.
fn store_in(folder: Option<&PathBuf>, limit: u64) -> Option<Store> {
    let folder = folder.cloned().or_else(Store::default_folder);
    if folder.is_none() {
        log::info!("no folder for compiled kernels is known; see --cache-dir");
    }
    folder.map(|folder| Store::new(folder, limit))
}

/// List or remove the compiled kernels of earlier runs, and what they found out about devices
///
/// Programs as drivers compiled them make the next start faster; so does what was checked, tuned and measured. Removing them changes nothing else.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// What there is, for which devices, and when it was last used
    List {
        #[command(flatten)]
        place: Place,
        /// One line for each file
        #[arg(long)]
        files: bool,
        /// Print one JSON object, with each file
        #[arg(long)]
        json: bool,
    },
    /// Remove all of it, or one kind
    Clear {
        #[command(flatten)]
        place: Place,
        /// What to remove
        #[arg(long, value_enum, value_name = "KIND")]
        kind: Option<Kind>,
    },
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The folder [default: `$TLITE_CACHE_DIR`, else a folder where the system keeps caches]
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new().try_map(folder))]
    cache_dir: Option<PathBuf>,
}

impl Place {
    fn store(&self) -> Result<Store> {
        let store = store_in(self.cache_dir.as_ref(), DEFAULT_LIMIT);
        store.ok_or_else(|| {
            let what = "neither TLITE_CACHE_DIR nor the system names a folder";
            Error::usage("--cache-dir", what.to_owned())
        })
    }
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Program => "OpenCL programs",
            Self::Pipeline => "pipeline caches of wgpu",
            Self::Verdict => "what checks of kernels on a device found",
            Self::Tuning => "what `tlite tune` chose",
            Self::Probe => "what `tlite devices --probe` measured",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

/// A file in JSON.
#[derive(Debug, Serialize)]
struct Row<'a> {
    kind: Kind,
    file: String,
    bytes: u64,
    /// Seconds since it was written or, to a day, last used.
    age_s: u64,
    device: Option<&'a str>,
    driver: Option<&'a str>,
    /// Kernel and defines; none for a damaged file.
    subject: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    folder: String,
    bytes: u64,
    files: Vec<Row<'a>>,
}

fn age(entry: &Entry, now: SystemTime) -> u64 {
    now.duration_since(entry.used).map_or(0, |age| age.as_secs())
}

/// Seconds as people count them.
pub fn age_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The files of one kind and device.
#[derive(Default)]
struct Group {
    files: usize,
    bytes: u64,
    /// Seconds since the last use of any.
    age: u64,
}

const DAMAGED: (&str, &str) = ("(damaged; the next start removes it)", "");

/// Device and driver of a file.
fn owner(entry: &Entry) -> (&str, &str) {
    entry.key.as_ref().map_or(DAMAGED, |k| (&k.device, &k.driver))
}

/// Columns of a terminal.
const COLUMNS: usize = 80;

/// `rows` with the texts of a column cut so far that a line of their table has no more than [`COLUMNS`], if that is enough.
pub fn fitted(mut rows: Vec<Vec<String>>, column: usize) -> Vec<Vec<String>> {
    let width = |rows: &[Vec<String>]| {
        table(rows, 3)
            .lines()
            .map(|l| l.chars().count())
            .max()
            .unwrap_or(0)
    };
    let lengths = rows
        .iter()
        .filter_map(|r| r.get(column))
        .map(|t| t.chars().count());
    let longest = lengths.max().unwrap_or(0);
    let room = longest
        .saturating_sub(width(&rows).saturating_sub(COLUMNS))
        .max(12);
    for text in rows.iter_mut().filter_map(|r| r.get_mut(column)) {
        if text.chars().count() > room {
            *text = text.chars().take(room - 3).chain("...".chars()).collect();
        }
    }
    rows
}

/// A line for each kind and device, or, with `files`, for each file. On a terminal the longest column is cut.
fn text(entries: &[Entry], files: bool, now: SystemTime, terminal: bool) -> String {
    let fitted = |rows| if terminal { fitted(rows, 2) } else { rows };
    let heads = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    if files {
        let mut rows = vec![heads(&["kind", "device", "kernel", "size", "used"])];
        rows.extend(entries.iter().map(|e| {
            let subject = e.key.as_ref().map_or("", |k| &k.subject);
            let names = [e.kind.name(), owner(e).0, subject].map(str::to_owned);
            names
                .into_iter()
                .chain([size_text(e.bytes), age_text(age(e, now))])
                .collect()
        }));
        return table(&fitted(rows), 3);
    }
    let mut groups = BTreeMap::<_, Group>::new();
    for e in entries {
        let group = groups.entry((e.kind, owner(e))).or_insert_with(|| Group {
            age: u64::MAX,
            ..Group::default()
        });
        group.files += 1;
        group.bytes += e.bytes;
        group.age = group.age.min(age(e, now));
    }
    let mut rows = vec![heads(&["kind", "device", "driver", "files", "size", "used"])];
    rows.extend(groups.into_iter().map(|((kind, (device, driver)), group)| {
        let names = [kind.name(), device, driver].map(str::to_owned);
        let numbers = [
            group.files.to_string(),
            size_text(group.bytes),
            age_text(group.age),
        ];
        names.into_iter().chain(numbers).collect()
    }));
    table(&fitted(rows), 3)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match &args.action {
        Action::Clear { place, kind } => {
            let store = place.store()?;
            let (count, bytes) = store.clear(*kind)?;
            put(
                &mut out,
                &format!(
                    "removed {}, {}, from {}\n",
                    count_text(count, "file"),
                    size_text(bytes),
                    store.folder().display()
                ),
            )
        }
        Action::List { place, files, json } => {
            let store = place.store()?;
            let entries = store.entries()?;
            let now = SystemTime::now();
            let bytes = entries.iter().map(|e| e.bytes).sum();
            if *json {
                let row = |e| rows(e, now);
                return put_json(
                    &mut out,
                    &Report {
                        folder: store.folder().display().to_string(),
                        bytes,
                        files: entries.iter().map(row).collect(),
                    },
                );
            }
            let head = format!(
                "{}: {}, {}\n",
                store.folder().display(),
                count_text(entries.len(), "file"),
                size_text(bytes)
            );
            let list = if entries.is_empty() {
                String::new()
            } else {
                text(&entries, *files, now, std::io::stdout().is_terminal())
            };
            put(&mut out, &format!("{head}{list}"))
        }
    }
}

fn rows(entry: &Entry, now: SystemTime) -> Row<'_> {
    Row {
        kind: entry.kind,
        file: entry.path.display().to_string(),
        bytes: entry.bytes,
        age_s: age(entry, now),
        device: entry.key.as_ref().map(|k| k.device.as_str()),
        driver: entry.key.as_ref().map(|k| k.driver.as_str()),
        subject: entry.key.as_ref().map(|k| k.subject.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Key;
    use std::time::Duration;

    #[test]
    fn files_are_summed_by_kind_and_device() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let entry = |kind, device: Option<&str>, seconds| Entry {
            kind,
            path: PathBuf::from("x"),
            bytes: 1000,
            used: now - Duration::from_secs(seconds),
            key: device.map(|d| Key {
                device: d.to_owned(),
                driver: "1".to_owned(),
                subject: "matmul".to_owned(),
                text: String::new(),
            }),
        };
        let all = [
            entry(Kind::Program, Some("B"), 7200),
            entry(Kind::Program, Some("B"), 59),
            entry(Kind::Pipeline, Some("B"), 200_000),
            entry(Kind::Program, None, 60),
        ];
        let lines = text(&all, false, now, false);
        let lines: Vec<Vec<&str>> = lines
            .lines()
            .map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        assert_eq!(lines[0], ["kind", "device", "driver", "files", "size", "used"]);
        assert_eq!(lines[1], ["program", DAMAGED.0, "1", &size_text(1000), "1 min"]);
        assert_eq!(lines[2], ["program", "B", "1", "2", &size_text(2000), "59 s"]);
        assert_eq!(lines[3], ["pipeline", "B", "1", "1", &size_text(1000), "2 d"]);
        let lines = text(&all, true, now, false);
        assert_eq!(lines.lines().count(), 5);
        assert!(
            lines
                .lines()
                .nth(1)
                .is_some_and(|l| l.contains("matmul") && l.ends_with("2 h")),
            "{lines}"
        );
    }

    #[test]
    fn on_a_terminal_lines_are_no_longer_than_it() {
        let row = |driver: &str| ["program", "Device", driver, "3"].map(str::to_owned).to_vec();
        let rows = || vec![row("driver"), row(&"long ".repeat(30)), row("1")];
        let lines = table(&fitted(rows(), 2), 3);
        assert!(lines.lines().all(|l| l.len() <= COLUMNS), "{lines}");
        assert!(
            lines.lines().any(|l| l.len() == COLUMNS && l.contains("lo...")),
            "{lines}"
        );
        let short = vec![row("driver"), row("1")];
        assert_eq!(fitted(short.clone(), 2), short);
    }

    #[test]
    fn a_cache_is_asked_for_or_not() {
        let dir = Some(PathBuf::from("d"));
        let with = |no_cache, mb| CacheOptions {
            no_cache,
            cache_dir: dir.clone(),
            cache_mb: mb,
        };
        assert!(with(true, None).store().is_none());
        assert_eq!(with(false, None).store().map(|s| s.folder().to_owned()), dir);
        assert!(
            megabytes("0").is_err() && megabytes("-1").is_err() && megabytes("18446744073709551615").is_err()
        );
        assert_eq!(megabytes("3"), Ok(NonZeroU64::new(3).unwrap()));
    }
}
