//! Packed constants.

use crate::graph::{Graph, ValueId};
use crate::num;
use crate::tensor::DType;

/// The packed form of a constant, or of a part of it, that a kernel requires. The constant is
/// viewed as a matrix: all axes except the last are rows. The items of a packed tensor are 4-byte
/// words, regardless of its element type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pack {
    /// The whole tensor, row-major.
    Plain {
        /// Element type on the device.
        dtype: DType,
    },
    /// Slices `first .. first + count` along the first axis.
    Rows {
        /// Element type on the device.
        dtype: DType,
        first: usize,
        count: usize,
    },
    /// Columns `first .. first + count`, zero-padded to `stride` and divided into panels of `panel`
    /// columns. Each panel is contiguous and row-major. With `panel == stride`, the result is one
    /// row-major matrix.
    Columns {
        /// Element type on the device; [`DType::U32`] copies 4-byte items unchanged.
        dtype: DType,
        /// Transpose the matrix first.
        transpose: bool,
        first: usize,
        count: usize,
        /// Number of columns including padding, a multiple of `panel`.
        stride: usize,
        /// Columns in a panel.
        panel: usize,
    },
    /// The bytes without conversion, padded to whole words.
    Bytes,
    /// 8-bit slices along the first axis as words of four bytes, in panels of `tile` slices, padded
    /// with zeros to whole panels. Within a panel, the words at the same position of the slices are
    /// adjacent.
    Words {
        /// Slices in a panel.
        tile: usize,
        /// Each panel ends with the sum of the bytes of each slice, in `i32`.
        sums: bool,
    },
    /// Slices along the first axis in groups of `rows`. Each group is divided into tiles of `tile`
    /// slices and zero-padded to whole tiles. Within a tile, the `tile` elements at the same
    /// position of the slices are adjacent. Selects the tiles `first .. first + count`, numbered
    /// across all groups.
    Tiles {
        /// Element type on the device.
        dtype: DType,
        /// Slices in a group.
        rows: usize,
        /// Slices in a tile.
        tile: usize,
        first: usize,
        count: usize,
    },
}

impl Pack {
    /// Element type on the device.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Bytes | Self::Words { .. } => DType::U32,
            Self::Plain { dtype }
            | Self::Rows { dtype, .. }
            | Self::Columns { dtype, .. }
            | Self::Tiles { dtype, .. } => *dtype,
        }
    }

    /// Bytes on the device for a constant with this shape and host type; `None` on overflow.
    pub fn bytes(&self, shape: &[usize], host: DType) -> Option<u64> {
        let count = |sizes: &[usize]| {
            sizes
                .iter()
                .try_fold(1u64, |n, d| n.checked_mul(u64::try_from(*d).ok()?))
        };
        let (last, before) = match shape.split_last() {
            Some((last, before)) => (u64::try_from(*last).ok()?, count(before)?),
            None => (1, 1),
        };
        let size = |dtype: DType| num::wide(dtype.device_bytes());
        let bytes = match self {
            Self::Plain { dtype } => count(shape)?.checked_mul(size(*dtype))?,
            Self::Bytes => count(shape)?.checked_mul(u64::try_from(host.size()).ok()?)?,
            Self::Words { tile, sums } => {
                let slices = shape.first()?.checked_next_multiple_of(*tile)?;
                let bytes = count(shape.get(1..)?)?.checked_next_multiple_of(4)?;
                let bytes = bytes.checked_add(if *sums { 4 } else { 0 })?;
                bytes.checked_mul(num::wide(slices))?
            }
            Self::Rows {
                dtype, count: rows, ..
            } => {
                let row = count(shape.get(1..)?)?;
                row.checked_mul(u64::try_from(*rows).ok()?)?
                    .checked_mul(size(*dtype))?
            }
            Self::Tiles {
                dtype,
                tile,
                count: tiles,
                ..
            } => count(&[*tiles, *tile])?
                .checked_mul(count(shape.get(1..)?)?)?
                .checked_mul(size(*dtype))?,
            Self::Columns {
                dtype: device,
                transpose,
                stride,
                ..
            } => {
                let rows = match (*device, *transpose) {
                    // The items of a packed tensor have 4 bytes, regardless of its last axis.
                    (DType::U32, _) => u64::try_from(*shape.first().unwrap_or(&1)).ok()?.max(1),
                    (_, true) => last,
                    (_, false) => before,
                };
                rows.checked_mul(u64::try_from(*stride).ok()?)?
                    .checked_mul(size(*device))?
            }
        };
        let unit = num::wide(self.dtype().device_padding());
        Some(bytes.checked_next_multiple_of(unit)?.max(unit))
    }
}

/// A packed constant. Equal keys share one device buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightKey {
    /// The constant, or several whose columns are placed side by side ([`Pack::Columns`] of 4-byte
    /// items).
    pub values: Vec<ValueId>,
    pub pack: Pack,
}

impl WeightKey {
    /// Bytes on the device; `None` if the shapes are unknown or incompatible, or on overflow.
    pub fn bytes(&self, graph: &Graph) -> Option<u64> {
        let (first, more) = self.values.split_first()?;
        let fact = |v: &ValueId| graph.fact(*v).ok();
        let mut shape = fact(first)?.shape.as_fixed()?;
        for v in more {
            let columns = *fact(v)?.shape.as_fixed()?.get(1)?;
            let all = shape.get_mut(1)?;
            *all = all.checked_add(columns)?;
        }
        self.pack.bytes(&shape, fact(first)?.dtype)
    }

    /// Names of the constants.
    pub fn names<'g>(&self, graph: &'g Graph) -> Vec<&'g str> {
        let name = |v: &ValueId| graph.value(*v).name.as_str();
        self.values.iter().map(name).collect()
    }
}
