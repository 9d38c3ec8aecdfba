//! Files whose bytes stay available: mapped, for models of any size without a copy in memory, or
//! read.

use crate::quota::{self, Exceeded, Reservation};
use crate::tensor::Bytes;
use memmap2::Mmap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};

/// The bytes of a whole file.
///
/// The file must not be changed or truncated while it is mapped: what the program sees may then
/// change at any moment. This crate's tools write a new file and rename it, which leaves existing
/// maps unchanged. [`Copied`] has no such condition.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps `file`. The operating system returns an error for an empty file.
    pub fn new(file: &File) -> Result<Self> {
        // SAFETY: the map is only read, through this value. The contract above forbids changes by
        // others; a violation can change results, or end this process with a bus error.
        unsafe { Mmap::map(file) }.map(Self)
    }
}

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A copy of a whole file in memory, which counts under the quota.
#[derive(Debug)]
pub struct Copied {
    /// The file follows after some bytes.
    bytes: Vec<u8>,
    start: usize,
    _reservation: Reservation,
}

impl Copied {
    /// The file is aligned, so that the backend `cpu` can read weights in place, as in a map.
    const ALIGN: usize = 64;

    /// Reads the `length` bytes of `file`. The inner error means that the quota is exceeded.
    pub fn new(mut file: &File, length: usize) -> Result<std::result::Result<Self, Exceeded>> {
        let reservation = match quota::reserve(length) {
            Ok(reservation) => reservation,
            Err(e) => return Ok(Err(e)),
        };
        let mut bytes: Vec<u8> = Vec::new();
        bytes
            .try_reserve_exact(length.saturating_add(Self::ALIGN))
            .map_err(|e| Error::new(ErrorKind::OutOfMemory, e))?;
        let start = bytes.as_ptr().align_offset(Self::ALIGN).min(Self::ALIGN - 1);
        // Within the capacity, so the bytes do not move.
        bytes.resize(start + length, 0);
        file.read_exact(&mut bytes[start..])?;
        Ok(Ok(Self {
            bytes,
            start,
            _reservation: reservation,
        }))
    }
}

impl Bytes for Copied {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}
