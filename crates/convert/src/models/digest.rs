//! Digests of the content of files.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use transformer_lite::unstable::error::{Error, Result};

/// Bytes that are read at once.
const BLOCK: usize = 1 << 20;

/// SHA-256 of what it is given.
#[derive(Clone, Default)]
pub(super) struct Hash(Sha256);

impl Hash {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest as 64 hexadecimal digits.
    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// True for a digest as [`Hash::finish`] writes it.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Feeds the rest of `file` to `hash`, and calls `read` with the number of bytes of each block.
pub(super) fn feed(hash: &mut Hash, file: &mut File, mut read: impl FnMut(u64)) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    loop {
        let count = match file.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        hash.update(block.get(..count).unwrap_or_default());
        read(count as u64);
    }
}

/// The SHA-256 of a file.
pub(super) fn sha256(path: &Path, read: impl FnMut(u64)) -> Result<String> {
    let mut hash = Hash::default();
    File::open(path)
        .and_then(|mut file| feed(&mut hash, &mut file, read))
        .map_err(|e| Error::io("cannot read", path, e))?;
    Ok(hash.finish())
}

#[cfg(test)]
mod tests;
