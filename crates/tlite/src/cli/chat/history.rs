//! The history file, which only its user can read.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use transformer_lite::unstable::cache::named_folder;
use transformer_lite::unstable::files::temporary;

/// Environment variable that names another folder for the file.
pub const FOLDER_VARIABLE: &str = "TLITE_HISTORY_DIR";
/// Maximum number of entries.
pub const CAPACITY: usize = 1000;
/// Longer entries are not written to the file.
const MAX_BYTES: usize = 64 << 10;
/// No more than this is read from the file.
const MAX_FILE_BYTES: u64 = 2 * (CAPACITY * MAX_BYTES) as u64;

/// A file of JSON strings, one per line, the newest entry last.
#[derive(Debug)]
pub struct HistoryFile(PathBuf);

impl HistoryFile {
    /// The user's file; `None` if the environment names no folder.
    pub fn of_user() -> Option<Self> {
        named_folder(FOLDER_VARIABLE, "chat").map(|folder| Self(folder.join("history")))
    }

    /// The file at `path`.
    #[cfg(test)]
    pub fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The last [`CAPACITY`] entries. Damaged lines are skipped. A file with twice as many entries
    /// is shortened.
    pub fn read(&self) -> std::io::Result<Vec<String>> {
        let file = match File::open(&self.0) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let mut entries = Vec::new();
        for line in BufReader::new(file.take(MAX_FILE_BYTES)).split(b'\n') {
            if let Ok(entry) = serde_json::from_slice::<String>(&line?) {
                entries.push(clean(&entry));
            }
        }
        let (all, old) = (entries.len(), entries.len().saturating_sub(CAPACITY));
        entries.drain(..old);
        if all >= 2 * CAPACITY {
            self.rewrite(&entries)?;
        }
        Ok(entries)
    }

    pub fn add(&self, entry: &str) -> std::io::Result<()> {
        if entry.len() > MAX_BYTES {
            return Ok(());
        }
        if let Some(folder) = self.0.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut options = OpenOptions::new();
        options.append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&self.0)?;
        #[cfg(unix)]
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        // One write, because another chat may append at the same time.
        file.write_all(line_of(entry)?.as_bytes())
    }

    fn rewrite(&self, entries: &[String]) -> std::io::Result<()> {
        let Some(folder) = self.0.parent() else {
            return Ok(());
        };
        let mut new = temporary::create(folder, 0o600)?;
        let lines: std::io::Result<String> = entries.iter().map(|e| line_of(e)).collect();
        new.write_all(lines?.as_bytes())?;
        new.persist(&self.0).map(drop).map_err(|e| e.error)
    }
}

fn line_of(entry: &str) -> std::io::Result<String> {
    Ok(serde_json::to_string(entry)? + "\n")
}

/// Removes escape sequences and control characters except line feeds and tabs.
pub fn clean(text: &str) -> String {
    let text = anstream::adapter::strip_str(text).to_string();
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.chars()
        .filter(|c| !c.is_control() || matches!(c, '\n' | '\t'))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_kept_in_a_file_of_the_user() {
        let dir = tempfile::tempdir().unwrap();
        let file = HistoryFile::at(dir.path().join("new/history"));
        assert!(file.read().unwrap().is_empty());
        let entries = ["one", "two\nlines \u{1f389}", "日本語"];
        entries.iter().for_each(|e| file.add(e).unwrap());
        file.add(&"x".repeat(MAX_BYTES + 1)).unwrap();
        assert_eq!(file.read().unwrap(), entries);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode =
                |file: &HistoryFile| std::fs::metadata(file.path()).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&file), 0o600);
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
            file.add("three").unwrap();
            assert_eq!(mode(&file), 0o600);
        }
    }

    #[test]
    fn foreign_lines_are_left_out_and_old_ones_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let file = HistoryFile::at(dir.path().join("history"));
        std::fs::write(
            file.path(),
            b"\xff\n\"a\"\n\nplain\n{}\n\"b\\u001b[31m\\u0007c\"\n\"cut",
        )
        .unwrap();
        assert_eq!(file.read().unwrap(), ["a", "bc"]);

        let lines: String = (0..2 * CAPACITY).map(|n| format!("\"{n}\"\n")).collect();
        std::fs::write(file.path(), lines).unwrap();
        let read = file.read().unwrap();
        assert_eq!((read.len(), read[0].as_str()), (CAPACITY, "1000"));
        assert_eq!(
            std::fs::read_to_string(file.path()).unwrap().lines().count(),
            CAPACITY
        );
        assert_eq!(file.read().unwrap(), read);
        let others = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(others, 1, "no temporary file is left");
    }

    #[test]
    fn pasted_text_loses_control_characters() {
        assert_eq!(clean("a\r\nb\rc\td\u{1b}[1;31me\u{7}\u{9b}f"), "a\nb\nc\tdef");
    }
}
