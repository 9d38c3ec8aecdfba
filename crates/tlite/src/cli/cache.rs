//! `tlite cache`, and the cache options of other commands.

use super::choices;
use super::options::{ADVANCED, whole};
use super::output::{fitted_table, note, print_report, put, text_output, titled};
use clap::Subcommand;
use clap::builder::{PathBufValueParser, TypedValueParser};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::SystemTime;
use transformer_lite::unstable::cache::{DEFAULT_LIMIT, Entry, FOLDER_VARIABLE, Kind, Store};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::fmt::{count_text, size_text};

const MB: u64 = 1 << 20;
/// A pebibyte: more than any disk that it could be for.
const MAX_MB: NonZeroU64 = NonZeroU64::MIN.saturating_add((1 << 30) - 1);

/// The cache of compiled kernels.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = ADVANCED)]
pub struct CacheOptions {
    /// Do not use the kernel cache; device measurements are still saved
    #[arg(long, conflicts_with_all = ["cache_dir", "cache_mb"], hide_short_help = true)]
    pub no_cache: bool,
    /// Folder for compiled kernels and device measurements [default: `$TLITE_CACHE_DIR`, else in
    /// the user's cache folder]
    #[arg(
        long,
        value_name = "DIR",
        value_parser = PathBufValueParser::new().try_map(folder),
        hide_short_help = true
    )]
    pub cache_dir: Option<PathBuf>,
    /// Cache size limit in MB; least recently used files are removed first [default: 4096]
    #[arg(long, value_name = "N", value_parser = megabytes, hide_short_help = true)]
    pub cache_mb: Option<NonZeroU64>,
}

/// The note that the folder cannot be written is printed once.
static TOLD: Once = Once::new();

fn folder(path: PathBuf) -> Result<PathBuf, String> {
    match path.exists() && !path.is_dir() {
        true => Err("is a file; expected a folder".to_owned()),
        false => Ok(path),
    }
}

fn megabytes(text: &str) -> Result<NonZeroU64, String> {
    whole(text, NonZeroU64::MIN, MAX_MB)
}

impl CacheOptions {
    /// The kernel cache; `None` without one, or if no folder is known. A note says if it cannot be
    /// written.
    pub fn store(&self) -> Option<Arc<Store>> {
        if self.no_cache {
            return None;
        }
        self.probes().map(Arc::new)
    }

    /// The same store for device measurements, which `--no-cache` does not affect.
    pub fn probes(&self) -> Option<Store> {
        let limit = self.cache_mb.map_or(DEFAULT_LIMIT, |n| n.get() * MB);
        let store = store_in(self.cache_dir.as_ref(), limit)?;
        if let Err(e) = store.try_writing() {
            TOLD.call_once(|| {
                let (option, folder) = (self.folder_option(), store.folder().display());
                let what = format!(
                    "{option}: cannot write to {folder} ({e}); the next start compiles kernels again"
                );
                note(&what);
            });
        }
        Some(store)
    }

    /// The option or variable that names the folder.
    fn folder_option(&self) -> &'static str {
        match &self.cache_dir {
            Some(_) => "--cache-dir",
            None if std::env::var_os(FOLDER_VARIABLE).is_some() => FOLDER_VARIABLE,
            None => "the cache",
        }
    }
}

/// The store in `folder`, else in the user's cache folder; `None` if that is not known.
pub(super) fn store_in(folder: Option<&PathBuf>, limit: u64) -> Option<Store> {
    let folder = folder.cloned().or_else(Store::default_folder);
    if folder.is_none() {
        log::info!("no cache folder is known; see --cache-dir");
    }
    folder.map(|folder| Store::new(folder, limit))
}

/// List or clear cached kernels and device measurements
///
/// The cache makes starts faster. It holds compiled kernels, the results of kernel checks, tuned
/// settings and device measurements. All of this is made again when needed, except tuned settings,
/// which take a new run of `tlite tune`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite cache COMMAND",
    after_help = "\
Examples:
  tlite cache list
  tlite cache list --files
  tlite cache clear --kind program"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List what is cached, by kind and device
    #[command(after_help = "\
Examples:
  tlite cache list
  tlite cache list --files
  tlite cache list --json --cache-dir DIR")]
    List {
        #[command(flatten)]
        place: CacheDir,
        /// Print one line per file
        #[arg(long)]
        files: bool,
        /// Print one JSON object, with every file
        #[arg(long)]
        json: bool,
    },
    /// Remove cached files
    #[command(after_help = "\
Examples:
  tlite cache clear
  tlite cache clear --kind quarantine
  tlite cache clear --cache-dir DIR")]
    Clear {
        #[command(flatten)]
        place: CacheDir,
        /// Remove only this kind
        #[arg(long, value_parser = choices::cache_kind(), value_name = "KIND")]
        kind: Option<Kind>,
    },
}

#[derive(Debug, clap::Args)]
struct CacheDir {
    /// Folder of the cache [default: `$TLITE_CACHE_DIR`, else in the user's cache folder]
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new().try_map(folder))]
    cache_dir: Option<PathBuf>,
}

impl CacheDir {
    fn store(&self) -> Result<Store> {
        let store = store_in(self.cache_dir.as_ref(), DEFAULT_LIMIT);
        store.ok_or_else(|| {
            let what = "no cache folder is known; set TLITE_CACHE_DIR or give --cache-dir";
            Error::usage("--cache-dir", what.to_owned())
        })
    }
}

/// A file of the cache.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Row<'a> {
    /// What it holds.
    kind: Kind,
    /// Its path.
    file: String,
    /// Its size.
    bytes: u64,
    /// Seconds since its last use, to the day.
    age_s: u64,
    /// The device that it is for; null for a damaged file.
    device: Option<&'a str>,
    /// The driver that it is for; null for a damaged file.
    driver: Option<&'a str>,
    /// Kernel and defines; null for a damaged file.
    subject: Option<&'a str>,
}

/// The object of `tlite cache list --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report<'a> {
    /// The folder.
    folder: String,
    /// Size of all files.
    bytes: u64,
    /// The files, last used first.
    files: Vec<Row<'a>>,
}

fn age(entry: &Entry, now: SystemTime) -> u64 {
    now.duration_since(entry.used).map_or(0, |age| age.as_secs())
}

/// Seconds in the largest unit that fits.
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

const DAMAGED: &str = "(damaged; the next start removes it)";

/// Device of a file.
fn owner(entry: &Entry) -> &str {
    entry.key.as_ref().map_or(DAMAGED, |k| &k.device)
}

/// A line for each kind and device or, with `files`, for each file.
fn text(entries: &[Entry], files: bool, now: SystemTime) -> String {
    if files {
        let subject = |e: &Entry| e.key.as_ref().map_or_else(String::new, |k| k.subject.clone());
        let rows = titled(
            entries,
            &[
                ("kind", &|e| e.kind.name().to_owned()),
                ("device", &|e| owner(e).to_owned()),
                ("kernel", &subject),
                ("size", &|e| size_text(e.bytes)),
                ("used", &|e| age_text(age(e, now))),
            ],
        );
        return fitted_table(&rows, 3, 2);
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
    let groups: Vec<_> = groups.into_iter().collect();
    let rows = titled(
        &groups,
        &[
            ("kind", &|((kind, _), _)| kind.name().to_owned()),
            ("device", &|((_, device), _)| (*device).to_owned()),
            ("files", &|(_, group)| group.files.to_string()),
            ("size", &|(_, group)| size_text(group.bytes)),
            ("used", &|(_, group)| age_text(group.age)),
        ],
    );
    fitted_table(&rows, 2, 1)
}

pub fn run(args: &Args) -> Result<()> {
    match &args.action {
        Action::Clear { place, kind } => {
            let store = place.store()?;
            let (count, bytes) = store.clear(*kind)?;
            put(
                &mut text_output(),
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
            let report = Report {
                folder: store.folder().display().to_string(),
                bytes,
                files: entries.iter().map(|e| row(e, now)).collect(),
            };
            print_report(*json, &report, || {
                let count = count_text(entries.len(), "file");
                let head = format!("{}: {count}, {}\n", report.folder, size_text(bytes));
                match entries.is_empty() {
                    true => head,
                    false => head + &text(&entries, *files, now),
                }
            })
        }
    }
}

fn row(entry: &Entry, now: SystemTime) -> Row<'_> {
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
    use std::time::Duration;
    use transformer_lite::unstable::cache::Key;

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
        let lines = text(&all, false, now);
        let lines: Vec<Vec<&str>> = lines
            .lines()
            .map(|l| l.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect();
        assert_eq!(lines[1], ["program", DAMAGED, "1", &size_text(1000), "1 min"]);
        assert_eq!(lines[2], ["program", "B", "2", &size_text(2000), "59 s"]);
        assert_eq!(lines[3], ["pipeline", "B", "1", &size_text(1000), "2 d"]);
        let lines = text(&all, true, now);
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
