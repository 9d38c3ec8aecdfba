//! Numbers in configuration files, in the forms in which programs write them: a whole number may
//! have a fraction of zeros, and any number may be a string.

use super::TokenIds;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// A finite number; `None` for another value.
fn number_of(value: &Value) -> Option<f64> {
    let found = match value {
        Value::Number(n) => n.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    found.filter(|v| v.is_finite())
}

/// An integer that `i64` holds; `None` for another value.
fn whole_of(value: &Value) -> Option<i64> {
    if let Some(v) = value.as_i64() {
        return Some(v);
    }
    let found = number_of(value).filter(|v| v.fract() == 0.0 && v.abs() < 9e15);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a whole number that f64 holds exactly"
    )]
    found.map(|v| v as i64)
}

/// A value that is not null, or an error that says what was expected.
fn read<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: &str,
    of: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        value => of(&value)
            .map(Some)
            .ok_or_else(|| D::Error::custom(format!("expected {expected}"))),
    }
}

pub(super) fn float<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f32>, D::Error> {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is intended")]
    read(from, "a number", |v| number_of(v).map(|v| v as f32))
}

pub(super) fn integer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    read(from, "an integer", whole_of)
}

pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<usize>, D::Error> {
    let size = |v: &Value| whole_of(v).and_then(|v| usize::try_from(v).ok());
    read(from, "a non-negative integer", size)
}

pub(super) fn flag<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    read(from, "true or false", |v| match v {
        Value::Bool(b) => Some(*b),
        Value::String(text) => text.trim().to_ascii_lowercase().parse().ok(),
        _ => None,
    })
}

/// Token ids; negative ones stand for none.
pub(super) fn ids<'de, D: Deserializer<'de>>(from: D) -> Result<Option<TokenIds>, D::Error> {
    let expected = "a token id or a list of token ids";
    let id = |v: &Value| whole_of(v).filter(|id| *id <= i64::from(u32::MAX));
    let found = read(from, expected, |value| match value {
        Value::Array(list) => {
            let all: Option<Vec<i64>> = list.iter().filter(|v| !v.is_null()).map(id).collect();
            all.map(|ids| TokenIds::Many(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect()))
        }
        one => id(one).map(|id| match u32::try_from(id) {
            Ok(id) => TokenIds::One(id),
            Err(_) => TokenIds::Many(Vec::new()),
        }),
    })?;
    Ok(found.filter(|ids| !ids.as_slice().is_empty()))
}
