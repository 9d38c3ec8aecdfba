//! One file of a [`Store`](super::Store): a header, the key, the contents.
//!
//! ```text
//! 0   8 bytes   "TLITE\0CA"
//! 8   u32       version of this format
//! 12  u32       CRC-32 of everything that follows
//! 16  u64       size of the key in bytes
//! 24  u64       size of the contents in bytes
//! 32            the key as JSON, the contents
//! ```
//!
//! Numbers are little-endian.

const MAGIC: [u8; 8] = *b"TLITE\0CA";
const VERSION: u32 = 1;

/// Size of the header in bytes.
pub(super) const HEADER: usize = 32;

/// The bytes of a file with this key and contents.
pub(super) fn write(key: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER + key.len() + contents.len());
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&[0; 4]);
    file.extend_from_slice(&(key.len() as u64).to_le_bytes());
    file.extend_from_slice(&(contents.len() as u64).to_le_bytes());
    file.extend_from_slice(key);
    file.extend_from_slice(contents);
    let sum = crc32fast::hash(&file[16..]);
    file[12..16].copy_from_slice(&sum.to_le_bytes());
    file
}

/// Key and contents of a valid file, or why it is damaged.
pub(super) fn read(file: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (header, rest) = file.split_first_chunk::<HEADER>().ok_or_else(|| {
        format!(
            "found {} bytes, expected at least the header of {HEADER}",
            file.len()
        )
    })?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if !header.starts_with(&MAGIC) {
        return Err("it is not a file of this cache".to_owned());
    }
    if word(8) != VERSION {
        return Err(format!("its format version is {}, expected {VERSION}", word(8)));
    }
    let (key, contents) = (number(16), number(24));
    if key.checked_add(contents) != Some(rest.len() as u64) {
        return Err(format!(
            "found {} bytes after the header, expected {key} and {contents}",
            rest.len()
        ));
    }
    let (found, wanted) = (crc32fast::hash(&file[16..]), word(12));
    if found != wanted {
        return Err(format!("its checksum is {found:08x}, expected {wanted:08x}"));
    }
    usize::try_from(key)
        .ok()
        .and_then(|n| rest.split_at_checked(n))
        .ok_or_else(|| format!("its key of {key} bytes does not fit"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_in_any_place_is_refused() {
        let file = write(b"key", b"contents");
        assert_eq!(read(&file), Ok((&b"key"[..], &b"contents"[..])));
        assert_eq!(read(&write(b"", b"")), Ok((&b""[..], &b""[..])));
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut other = file.clone();
                other[at] ^= 1 << bit;
                assert!(read(&other).is_err(), "bit {bit} of byte {at}");
            }
            assert!(read(&file[..at]).is_err(), "{at} bytes");
        }
        let longer = [file.as_slice(), b"x"].concat();
        let (longer, foreign) = (read(&longer).unwrap_err(), read(&[7; 100]).unwrap_err());
        assert_ne!(longer, foreign);
    }
}
