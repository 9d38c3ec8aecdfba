//! HTML pages of reports: the viewer, which is built from `web/`, with a report inside.

use super::output::note;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, write::GzEncoder};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::files::write_whole;

const VIEWER: &str = include_str!("../../page/viewer.html");
/// Where the viewer reads the report.
const PLACE: &str = "<script type=\"application/json\" id=\"report\">null</script>";
/// Size in bytes above which a report is compressed.
const PACKED: usize = 100_000;

/// What a page shows beside the object that `--json` prints.
#[derive(Debug, Default, Serialize)]
pub struct About {
    /// Which view to draw: `inspect`, `profile`, `quantize` or `int8`.
    pub kind: &'static str,
    /// Name of the model that was read.
    pub source: Option<String>,
    /// Name of the model that was written.
    pub target: Option<String>,
    /// The line below the title.
    pub headline: Option<String>,
    /// Formats of the weights in words.
    pub formats: Option<String>,
    pub warnings: Vec<String>,
}

/// The command line of this process, quoted for a shell.
fn command() -> String {
    let words = std::env::args_os().skip(1);
    let words: Vec<String> = words.map(|w| w.to_string_lossy().into_owned()).collect();
    let words = std::iter::once("tlite").chain(words.iter().map(String::as_str));
    shlex::try_join(words).unwrap_or_default()
}

/// The text of the element at [`PLACE`]: JSON without `<`, or a JSON string with gzip in base64.
fn embedded(report: &Value) -> io::Result<String> {
    let text = report.to_string();
    if text.len() <= PACKED {
        return Ok(text.replace('<', "\\u003c"));
    }
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(text.as_bytes())?;
    Ok(format!("\"{}\"", STANDARD.encode(gzip.finish()?)))
}

/// A self-contained page that shows a report.
///
/// # Errors
///
/// If the report cannot be written as JSON.
pub fn render(report: &impl Serialize, about: &About) -> io::Result<String> {
    let mut report = serde_json::to_value(report)?;
    let mut about = serde_json::to_value(about)?;
    about["command"] = json!(command());
    about["time"] = json!(jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string());
    about["version"] = json!(env!("CARGO_PKG_VERSION"));
    if let Some(keys) = report.as_object_mut() {
        keys.insert("report".to_owned(), about);
        // The viewer does not use them, and they are a seventh of a page of `tlite inspect`.
        keys.remove("values");
    }
    let data = PLACE.replace("null", &embedded(&report)?);
    Ok(VIEWER.replacen(PLACE, &data, 1))
}

/// Writes the page of a report, and notes it.
pub(super) fn write(file: &Path, report: &impl Serialize, about: &About) -> Result<()> {
    let page = render(report, about);
    write_whole(file, |out| out.write_all(page?.as_bytes()))?;
    note(&format!("wrote {}", file.display()));
    Ok(())
}
