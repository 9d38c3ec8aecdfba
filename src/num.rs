//! Integer conversions. A number that does not fit is an error, unless its function says that it
//! saturates.

use std::fmt::{Debug, Display};
use std::slice::SliceIndex;

/// A number that does not fit its target type. This is a bug in the code that computed the number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {value}, which does not fit in {target}")]
pub struct OutOfRange {
    /// What the number counts.
    what: &'static str,
    value: String,
    target: &'static str,
}

/// `n` as a `T`; `what` names the number in the error.
pub fn exact<T: TryFrom<S>, S: Copy + Display>(n: S, what: &'static str) -> Result<T, OutOfRange> {
    T::try_from(n).map_err(|_| OutOfRange {
        what,
        value: n.to_string(),
        target: std::any::type_name::<T>(),
    })
}

/// The elements of `list` in `range`. An error means a bug in the code that computed the range.
pub fn part<T, R>(list: &[T], range: R) -> Result<&[T], OutOfRange>
where
    R: SliceIndex<[T], Output = [T]> + Clone + Debug,
{
    list.get(range.clone()).ok_or_else(|| OutOfRange {
        what: "a range",
        value: format!("{range:?} of {} elements", list.len()),
        target: "the list",
    })
}

/// A length, count or index of something in memory, as a signed number. Rust allocates at most
/// `isize::MAX` bytes, so every real one fits; larger arguments saturate.
pub fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// `n`, or `u64::MAX` if `n` is larger. For durations and other measurements.
pub fn saturating(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A length, count or index in 64 bits.
pub const fn wide(n: usize) -> u64 {
    const { assert!(usize::BITS <= u64::BITS, "every `usize` fits") };
    n as u64
}

/// The larger number; NaN propagates, as in ONNX.
pub(crate) fn max_nan<T: PartialOrd>(a: T, b: T) -> T {
    if a >= b || no_number(&a) { a } else { b }
}

/// The smaller number; see [`max_nan`].
pub(crate) fn min_nan<T: PartialOrd>(a: T, b: T) -> T {
    if a <= b || no_number(&a) { a } else { b }
}

/// True for NaN; false for all integers.
pub(crate) fn no_number<T: PartialOrd>(v: &T) -> bool {
    v.partial_cmp(v).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_or_errors() {
        let list = [1, 2, 3];
        assert_eq!(
            (part(&list, 1..3), part(&list, 3..)),
            (Ok(&list[1..]), Ok(&[][..]))
        );
        let e = part(&list, 2..4).unwrap_err().to_string();
        assert_eq!(e, "a range is 2..4 of 3 elements, which does not fit in the list");
        assert!(part(&list, 4..).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit_are_errors() {
        assert_eq!(exact::<u32, _>(7usize, "a width"), Ok(7), "fits");
        let e = exact::<u8, _>(-1i64, "a width").unwrap_err();
        assert_eq!((e.what, e.value.as_str(), e.target), ("a width", "-1", "u8"));
        assert_eq!(
            (signed(usize::MAX), wide(usize::MAX)),
            (i64::MAX, u64::MAX),
            "saturates, exact"
        );
    }
}
