//! Files mapped for reading: models of any size without a copy in memory.

use crate::tensor::Bytes;
use memmap2::Mmap;
use std::fs::File;

/// A whole file as bytes.
///
/// The file must not be changed or shortened while it is mapped. Tools of this crate write beside and rename, which leaves a
/// mapped file as it is.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

impl Mapped {
    /// Maps `file`; an empty file is an error of the system.
    pub(crate) fn new(file: &File) -> std::io::Result<Self> {
        // SAFETY: the map is only read, through this value. The contract above forbids changes by others; one who breaks it can
        // end this process with a bus error.
        unsafe { Mmap::map(file) }.map(Self)
    }
}

impl Bytes for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
