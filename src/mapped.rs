//! Memory-mapped files: models of any size without a copy in memory.

use crate::tensor::Bytes;
use memmap2::Mmap;
use std::fs::File;

/// The bytes of a whole file.
///
/// The file must not be changed or truncated while it is mapped. This crate's tools write a new
/// file and rename it, which leaves existing maps unchanged.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps `file`. The operating system returns an error for an empty file.
    pub fn new(file: &File) -> std::io::Result<Self> {
        // SAFETY: the map is only read, through this value. The contract above forbids changes by
        // others; a violation can end this process with a bus error.
        unsafe { Mmap::map(file) }.map(Self)
    }
}

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
