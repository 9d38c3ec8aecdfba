//! Shape algebra: symbolic integers, shapes, and what is known of a value before a run.
#![warn(missing_docs)]

mod bounds;
pub mod constraints;
pub mod dim;
mod eval;
mod normal;
mod parse;
mod print;
pub mod symbol;
#[cfg(test)]
mod tests;

pub use constraints::{ConstraintError, Constraints, Relation};
pub use dim::{Dim, DimError};
pub use symbol::{Bindings, Symbol};

use crate::tensor::{DType, HostTensor};
use std::fmt;
use std::sync::Arc;

/// Sizes of a tensor, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(pub Vec<Dim>);

impl Shape {
    /// A shape of constant sizes.
    pub fn fixed(dims: &[usize]) -> Self {
        Self(dims.iter().copied().map(Dim::from_usize).collect())
    }

    /// Number of axes; 0 for a scalar.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements, the product of the sizes.
    pub fn count(&self) -> Result<Dim, DimError> {
        product(&self.0)
    }

    /// The sizes as numbers, if all are constant.
    pub fn as_fixed(&self) -> Option<Vec<usize>> {
        self.0
            .iter()
            .map(|d| d.as_const().and_then(|v| usize::try_from(v).ok()))
            .collect()
    }

    /// The sizes as numbers; an error if one has a symbol or is negative.
    pub fn sizes(&self) -> Result<Vec<usize>, DimError> {
        self.eval(&Bindings::new())
    }

    /// The sizes under `bindings`; a negative size is an error.
    pub fn eval(&self, bindings: &Bindings) -> Result<Vec<usize>, DimError> {
        self.0
            .iter()
            .map(|d| {
                d.eval(bindings)
                    .and_then(|v| usize::try_from(v).map_err(|_| DimError::Negative(d.to_string(), v)))
            })
            .collect()
    }

    /// Replaces bound symbols by their values.
    pub fn substitute(&self, bindings: &Bindings) -> Result<Self, DimError> {
        Ok(Self(
            self.0
                .iter()
                .map(|d| d.substitute(bindings))
                .collect::<Result<_, _>>()?,
        ))
    }
}

/// Integer tensors of up to this many elements are tracked through shape computations.
pub const MAX_KNOWN: usize = 64;

/// Product of dims; 1 if there are none.
pub fn product(dims: &[Dim]) -> Result<Dim, DimError> {
    dims.iter().try_fold(Dim::from(1), |p, d| p.mul(d))
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// What is known of a value's contents before a run.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Known {
    /// Nothing: the elements depend on data.
    #[default]
    No,
    /// The whole tensor: an initializer or a folded constant.
    Const(Arc<HostTensor>),
    /// Every element of an integer or `bool` tensor of any rank as an expression, row-major; at
    /// most [`MAX_KNOWN`].
    Dims(Vec<Dim>),
    /// Every element of an `f32` tensor as a quotient, row-major, for shape computations that pass
    /// through floats; at most [`MAX_KNOWN`].
    Quotients(Vec<Quotient>),
}

/// `num / den` as a float: exact if `den` is a power of two and `num` is below [`EXACT`], else the
/// nearest float. Code that converts it to an integer must require such a small `num`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotient {
    /// Numerator, a symbolic integer.
    pub num: Dim,
    /// Denominator, above 0.
    pub den: i64,
}

/// An `f32` holds every integer up to twice this value, so sums of smaller numbers with small
/// constants stay exact.
pub const EXACT: i64 = 1 << 23;

impl Quotient {
    /// The quotient `num / 1`.
    pub fn whole(num: Dim) -> Self {
        Self { num, den: 1 }
    }

    /// A float with at most 10 binary fraction digits; `None` for other floats.
    pub fn of(v: f32) -> Option<Self> {
        const PLACES: i16 = 1 << 10;
        let num = v * f32::from(PLACES);
        #[expect(clippy::cast_precision_loss, reason = "a power of two")]
        let small = num.fract() == 0.0 && num.abs() < EXACT as f32;
        #[expect(clippy::cast_possible_truncation, reason = "whole and small")]
        let num = small.then_some(num as i64)?;
        let den = i64::from(PLACES);
        let twos = num.trailing_zeros().min(den.trailing_zeros());
        Some(Self {
            num: (num >> twos).into(),
            den: den >> twos,
        })
    }

    /// True if the float equals the quotient for every small `num`.
    pub fn is_exact(&self) -> bool {
        self.den.count_ones() == 1
    }
}

/// Element type, shape and known contents of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// Type of the elements.
    pub dtype: DType,
    /// Sizes as symbolic integers.
    pub shape: Shape,
    /// What is known of the contents.
    pub known: Known,
}

impl Fact {
    /// A fact without known contents.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        Self {
            dtype,
            shape,
            known: Known::No,
        }
    }

    /// The fact of a constant.
    pub fn of(tensor: Arc<HostTensor>) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: Shape::fixed(tensor.shape()),
            known: Known::Const(tensor),
        }
    }

    /// The constant, if the whole tensor is known.
    pub fn as_const(&self) -> Option<&Arc<HostTensor>> {
        match &self.known {
            Known::Const(t) => Some(t),
            _ => None,
        }
    }

    /// Elements of an integer or `bool` tensor as expressions, row-major. `None` if they are
    /// unknown, of another type, or more than [`MAX_KNOWN`].
    pub fn as_dims(&self) -> Option<Vec<Dim>> {
        match &self.known {
            Known::Dims(d) => Some(d.clone()),
            Known::Const(t) if t.len() <= MAX_KNOWN && (t.dtype().is_int() || t.dtype() == DType::Bool) => {
                t.to_i64().ok().map(|v| v.into_iter().map(Dim::from).collect())
            }
            _ => None,
        }
    }
}

impl Fact {
    /// Elements of an `f32` tensor as quotients, row-major. `None` if they are unknown, of another
    /// type, or more than [`MAX_KNOWN`].
    pub fn as_quotients(&self) -> Option<Vec<Quotient>> {
        match &self.known {
            Known::Quotients(q) => Some(q.clone()),
            Known::Const(t) if t.len() <= MAX_KNOWN && t.dtype() == DType::F32 => {
                t.f32s().ok()?.iter().map(|v| Quotient::of(*v)).collect()
            }
            _ => None,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
