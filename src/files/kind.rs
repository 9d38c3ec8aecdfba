//! Tells what a path or a file is if it is not what was expected.

use crate::error::{Error, Result};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

/// The first bytes of a GGUF file.
pub const GGUF_MAGIC: [u8; 4] = *b"GGUF";

/// True if the file begins with the magic number of GGUF.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; GGUF_MAGIC.len()];
    // Opening a pipe would wait for its writer.
    let read = |magic: &mut [u8]| std::fs::File::open(path)?.read_exact(magic);
    path.is_file() && read(&mut magic).is_ok() && magic == GGUF_MAGIC
}

/// A usage error of the option `name` if `path` is not a regular file.
pub fn check_file(name: &str, path: &Path) -> Result<()> {
    match path.is_file() {
        true => Ok(()),
        false => Err(Error::usage(name, not_a_file(path))),
    }
}

/// A message that says why `path` is not a regular file.
pub fn not_a_file(path: &Path) -> String {
    let shown = path.display();
    let above = path.parent().filter(|p| p.exists() && !p.is_dir());
    match (path.metadata(), above) {
        (Ok(meta), _) if meta.is_dir() => format!("{shown} is a folder; expected a file"),
        (Ok(_), _) => format!("{shown} is not a regular file"),
        (Err(_), Some(above)) => format!("{} is not a folder", above.display()),
        (Err(e), None) if e.kind() == ErrorKind::NotFound => format!("there is no file {shown}"),
        (Err(e), None) => format!("{shown} cannot be opened: {e}"),
    }
}

/// What a file that begins with `start` seems to be, as the end of a sentence, if that is known.
pub fn guess(start: &[u8]) -> Option<&'static str> {
    if start.is_empty() {
        return Some("the file is empty; download it again");
    }
    let text = start.trim_ascii_start();
    let begins = |word: &str| {
        let head = text.get(..word.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(word.as_bytes()))
    };
    let header = start.get(8) == Some(&b'{') && start.get(4..8) == Some(&[0; 4]);
    Some(match () {
        () if begins("version https://git-lfs") => {
            "it is a Git LFS pointer, not the file itself; run `git lfs pull`, or download the file again"
        }
        () if begins("<!doctype") || begins("<html") => {
            "it is a web page, probably from a failed download; download the file again"
        }
        () if start.starts_with(&GGUF_MAGIC) => "it is a GGUF file",
        () if header => "it is a safetensors file; give the folder that holds it and its config.json",
        () if start.starts_with(b"PK\x03\x04") => "it is a ZIP archive or a PyTorch file",
        () if start.starts_with(b"\x89PNG") || start.starts_with(b"\xff\xd8\xff") => "it is a picture",
        () if start.starts_with(b"\x93NUMPY") => "it is a .npy file",
        () if begins("{") || begins("[") => "it is a JSON file",
        () => return None,
    })
}

/// `what` followed by what the file seems to be.
pub fn explained(what: &str, start: &[u8]) -> String {
    match guess(start) {
        Some(guess) => format!("{what}: {guess}"),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let shown = |path: &Path| path.display().to_string();
        let inside = file.join("a");
        let cases = [
            (
                dir.path().to_owned(),
                format!("{} is a folder; expected a file", shown(dir.path())),
            ),
            (
                dir.path().join("a"),
                format!("there is no file {}", shown(&dir.path().join("a"))),
            ),
            (inside, format!("{} is not a folder", shown(&file))),
            #[cfg(unix)]
            ("/dev/null".into(), "/dev/null is not a regular file".to_owned()),
        ];
        for (path, expected) in cases {
            assert_eq!(not_a_file(&path), expected);
        }
    }

    #[test]
    fn usual_mistakes_are_recognized() {
        let header = [&[40, 0, 0, 0, 0, 0, 0, 0][..], b"{\"a\":1}"].concat();
        for (start, word) in [
            (&b""[..], "empty"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
            (b"\n<!DOCTYPE html>", "web page"),
            (b"GGUF\x03\0\0\0", "GGUF"),
            (b"PK\x03\x04", "ZIP"),
            (b"\x89PNG\r\n", "picture"),
            (b" {\"error\": 1}", "JSON"),
            (&header, "safetensors"),
        ] {
            assert!(guess(start).is_some_and(|g| g.contains(word)), "{start:?}");
        }
        assert_eq!(guess(b"\x08\x0a\x12"), None);
        assert_eq!(explained("x", b"\x08"), "x");
    }
}
