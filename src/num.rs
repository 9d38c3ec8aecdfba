//! Integer conversions. A number that does not fit is an error, unless its function says that it
//! saturates.

use std::cmp::Ordering;
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
    let len = list.len();
    list.get(range.clone())
        .ok_or_else(|| outside("a range", &range, len))
}

/// Like [`part`], to be written.
pub fn part_mut<T, R>(list: &mut [T], range: R) -> Result<&mut [T], OutOfRange>
where
    R: SliceIndex<[T], Output = [T]> + Clone + Debug,
{
    let len = list.len();
    list.get_mut(range.clone())
        .ok_or_else(|| outside("a range", &range, len))
}

/// Element `i` of `list`. An error means a bug in the code that computed the index.
pub fn at<T>(list: &[T], i: usize) -> Result<&T, OutOfRange> {
    list.get(i).ok_or_else(|| outside("an index", &i, list.len()))
}

/// Number `i` of the random sequence SplitMix64 (Steele, Lea and Flood, 2014) for `seed`: 64 bits
/// that are equal on all machines.
pub fn random_bits(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add(i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Number `i` of that sequence, uniform in [0, 1), as a multiple of 2^-`bits`; `bits` is 1 to 53.
#[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
pub fn random_uniform(seed: u64, i: u64, bits: u32) -> f64 {
    (random_bits(seed, i) >> (64 - bits)) as f64 / (1u64 << bits) as f64
}

#[cold]
fn outside(what: &'static str, place: &dyn Debug, len: usize) -> OutOfRange {
    OutOfRange {
        what,
        value: format!("{place:?} of {len} elements"),
        target: "the list",
    }
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

/// Ascending order as in ONNX: both zeros are equal, and NaN comes last.
pub(crate) fn ascending<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b)
        .unwrap_or_else(|| no_number(a).cmp(&no_number(b)))
}

/// `v` in single precision, rounded such that rounding the result to a narrower type rounds `v`
/// once: towards zero, with the last bit set if bits were lost.
#[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
pub(crate) fn narrowed(v: f64) -> f32 {
    let near = v as f32;
    let away = f64::from(near).abs() > v.abs();
    if f64::from(near) == v || v.is_nan() {
        return near;
    }
    let bits = near.to_bits() - u32::from(away);
    f32::from_bits(bits | 1)
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
        assert!(part(&list, 4..).is_err() && part_mut(&mut [1], 0..2).is_err());
        let e = at(&list, 3).unwrap_err().to_string();
        assert_eq!(e, "an index is 3 of 3 elements, which does not fit in the list");
    }

    #[test]
    fn zeros_are_equal_and_nan_comes_last() {
        let mut list = [f32::NAN, 1.0, -0.0, f32::INFINITY, 0.0, -f32::NAN, -1.0];
        list.sort_by(ascending);
        assert_eq!(&list[..5], &[-1.0, 0.0, 0.0, 1.0, f32::INFINITY]);
        assert!(list[1].is_sign_negative() && list[2].is_sign_positive(), "stable");
        assert!(list[5].is_nan() && list[6].is_nan());
    }

    #[test]
    fn narrower_types_round_once() {
        use half::{bf16, f16};
        let tie = 1.0 + 0.5f64.powi(11);
        let half = |v| f16::from_f32(narrowed(v)).to_f64();
        assert_eq!(
            [half(tie), half(tie + 1e-12), half(-tie - 1e-12)],
            [1.0, 1.0 + 0.5f64.powi(10), -1.0 - 0.5f64.powi(10)]
        );
        assert_eq!(half(0.5f64.powi(25) + 1e-20), 0.5f64.powi(24), "subnormal");
        assert_eq!(
            [half(65519.9999), half(65520.0), half(1e300)],
            [65504.0, f64::INFINITY, f64::INFINITY]
        );
        assert!(half(f64::NAN).is_nan() && half(-0.0).is_sign_negative());
        let tie = 1.0 + 0.5f64.powi(8);
        assert_eq!(
            bf16::from_f32(narrowed(tie + 1e-12)).to_f64(),
            1.0 + 0.5f64.powi(7)
        );
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
