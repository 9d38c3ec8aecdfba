//! Limits of a kernel's operand: the bytes that a device binds, and the elements that kernels can
//! count.

use crate::backend::Caps;
use crate::graph::op::{OpError, OpResult};

/// Maximum number of elements in an operand or result; kernels count them in 32 bits.
pub(super) const MOST_ELEMENTS: u32 = u32::MAX;

/// Maximum number of bytes that a kernel can bind and index, with elements of `size` bytes.
pub(super) fn largest(caps: &Caps, size: u64) -> u64 {
    caps.max_view_bytes
        .min(u64::from(MOST_ELEMENTS).saturating_mul(size))
}

/// Ranges (first, count) of `count` items, each of `elements` elements of `size` bytes, that fit in
/// a view. Each range but the last is a multiple of `unit` items.
pub(super) fn split(
    caps: &Caps,
    count: usize,
    (elements, size): (usize, usize),
    unit: usize,
) -> OpResult<Vec<(usize, usize)>> {
    let wide = u64::try_from(size).unwrap_or(u64::MAX);
    let limit = usize::try_from(largest(caps, wide)).unwrap_or(usize::MAX);
    let bytes = elements.saturating_mul(size);
    let most = (limit / bytes.max(1) / unit).saturating_mul(unit);
    if most == 0 {
        return Err(OpError::Unsupported(format!(
            "{unit} items of {bytes} bytes exceed the largest view of {limit} bytes that a kernel can bind and index"
        )));
    }
    Ok((0..count.div_ceil(most))
        .map(|i| (i * most, most.min(count - i * most)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(max_view_bytes: u64) -> Caps {
        Caps {
            max_view_bytes,
            ..Caps::neutral()
        }
    }

    /// The head of a model with a large vocabulary, on a server that binds all its memory at once.
    #[test]
    fn a_part_has_no_more_elements_than_kernels_count() {
        let (columns, depth) = (256_000, 18_432);
        for size in [2, 4] {
            let parts = split(&caps(35 << 30), columns, (depth, size), 2).unwrap();
            assert!(parts.len() > 1, "{parts:?}");
            let mut end = 0;
            for (first, count) in parts {
                assert_eq!((first, first % 2), (end, 0));
                assert!(u32::try_from(count * depth).is_ok(), "{count} columns");
                end = first + count;
            }
            assert_eq!(end, columns);
        }
    }

    #[test]
    fn bytes_bound_parts_where_they_are_fewer() {
        assert_eq!(split(&caps(1000), 10, (25, 4), 4).unwrap(), [(0, 8), (8, 2)]);
        assert_eq!(split(&caps(1000), 0, (25, 4), 4).unwrap(), []);
        assert!(split(&caps(1000), 10, (100, 4), 4).is_err());
        // One column with as many elements as there are numbers is one too many.
        let all = 1 << 32;
        assert!(split(&caps(u64::MAX), 2, (all, 2), 1).is_err());
        assert_eq!(split(&caps(u64::MAX), 2, (all - 1, 2), 1).unwrap().len(), 2);
    }
}
