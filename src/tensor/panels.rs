//! Matrices whose columns are stored in panels.

use super::{Bytes, Owned, TensorError};
use std::sync::{Arc, OnceLock};

/// A matrix of 4-byte items whose columns are stored in panels of equal width, one panel after the
/// other, each row-major.
pub struct Panels {
    source: Arc<dyn Bytes>,
    start: usize,
    rows: usize,
    columns: usize,
    width: usize,
    /// The same items row-major, for those who ask.
    row_major: OnceLock<Owned>,
}

/// Columns of the panels that native kernels read.
pub const PANEL: usize = 16;

/// Bytes of an item.
const ITEM: usize = 4;

impl Panels {
    /// `rows` times `columns` items of `source` from byte `start` on, in panels of `width` columns;
    /// `None` if the source is too short or the last panel would not be whole.
    pub fn new(
        source: Arc<dyn Bytes>,
        start: usize,
        [rows, columns]: [usize; 2],
        width: usize,
    ) -> Option<Self> {
        let bytes = rows.checked_mul(columns)?.checked_mul(ITEM)?;
        let fits = source.bytes().len().checked_sub(start)? >= bytes;
        (fits && width > 0 && columns.is_multiple_of(width)).then_some(Self {
            source,
            start,
            rows,
            columns,
            width,
            row_major: OnceLock::new(),
        })
    }

    /// Columns of the matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The bytes as they are stored.
    pub fn stored(&self) -> &[u8] {
        let length = self.rows * self.columns * ITEM;
        self.source
            .bytes()
            .get(self.start..self.start + length)
            .unwrap_or(&[])
    }

    /// What holds the stored bytes, and where they start in it.
    pub fn source(&self) -> (&Arc<dyn Bytes>, usize) {
        (&self.source, self.start)
    }

    /// The bytes row-major, which are copied once.
    pub(super) fn row_major(&self) -> Result<&[u8], TensorError> {
        let length = self.rows * self.columns * ITEM;
        let owned = match self.row_major.get() {
            Some(owned) => owned,
            None => {
                let mut owned = Owned::new(length)?;
                let to = bytemuck::cast_slice_mut::<u64, u8>(&mut owned.words);
                for (i, piece) in self.stored().chunks_exact(self.width * ITEM).enumerate() {
                    let (panel, row) = (i / self.rows, i % self.rows);
                    let at = (row * self.columns + panel * self.width) * ITEM;
                    if let Some(to) = to.get_mut(at..at + piece.len()) {
                        to.copy_from_slice(piece);
                    }
                }
                self.row_major.get_or_init(|| owned)
            }
        };
        let bytes = bytemuck::cast_slice::<u64, u8>(&owned.words);
        Ok(bytes.get(..length).unwrap_or(&[]))
    }
}

/// The bytes of a row-major matrix of 4-byte items in panels of `width` columns; `None` if these
/// would not be whole.
pub fn in_panels(row_major: &[u8], rows: usize, width: usize) -> Option<Vec<u8>> {
    let row = row_major.len().checked_div(rows)?;
    let piece = width.checked_mul(ITEM)?;
    let whole = row > 0 && row.is_multiple_of(piece) && row_major.len() == rows * row;
    whole.then(|| {
        let mut out = Vec::with_capacity(row_major.len());
        for panel in (0..row).step_by(piece) {
            let rows = row_major.chunks_exact(row);
            rows.filter_map(|r| r.get(panel..panel + piece))
                .for_each(|r| out.extend_from_slice(r));
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, HostTensor};

    #[test]
    fn a_tensor_in_panels_is_the_row_major_one() {
        let words: Vec<u32> = (0..5 * 12).collect();
        let plain = HostTensor::from_u32(&[5, 12], &words).unwrap();
        let mut stored = vec![9; 7];
        stored.extend(in_panels(plain.bytes().unwrap(), 5, 4).unwrap());
        assert_eq!(stored[7..23], *bytemuck::cast_slice::<u32, u8>(&[0, 1, 2, 3]));
        assert_eq!(
            stored[23..39],
            *bytemuck::cast_slice::<u32, u8>(&[12, 13, 14, 15])
        );
        let source: Arc<dyn Bytes> = Arc::new(stored);
        let panels = Panels::new(Arc::clone(&source), 7, [5, 12], 4).unwrap();
        let tensor = HostTensor::from_panels(DType::U32, &[5, 12], panels).unwrap();
        assert_eq!(tensor.u32s().unwrap(), words);
        assert_eq!(tensor.bytes().unwrap(), plain.bytes().unwrap());
        assert_eq!(tensor.panels().map(Panels::width), Some(4));
        assert!(plain.panels().is_none());
        // Too short a source, and columns that leave a part of a panel.
        assert!(Panels::new(Arc::clone(&source), 8, [5, 12], 4).is_none());
        assert!(Panels::new(Arc::clone(&source), 7, [5, 10], 4).is_none());
        assert!(Panels::new(source, 0, [5, 12], 0).is_none());
        assert!(in_panels(plain.bytes().unwrap(), 5, 5).is_none());
        assert!(in_panels(plain.bytes().unwrap(), 7, 4).is_none());
    }
}
