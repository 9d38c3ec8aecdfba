//! What shape inference reads and records.

use super::types::Types;
use super::{Op, OpError, OpResult};
use crate::graph::rules;
use crate::shape::{Constraints, Dim, Fact, MAX_KNOWN, Shape, Symbol};
use crate::tensor::DType;
use std::cell::RefCell;

/// Source of the value of a symbol that derivation introduced for data of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimSource {
    /// An element of an integer operand.
    Element {
        input: usize,
        /// Position, row-major.
        index: usize,
    },
    /// A size of a result, known after the node has run on the host.
    Size { output: usize, axis: usize },
}

/// A symbol that a node defines; see [`DimSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDependentDim {
    pub symbol: Symbol,
    /// Where its value comes from.
    pub source: DimSource,
    /// An upper bound, if the operator knows one.
    pub at_most: Option<Dim>,
}

/// A condition that derivation could not decide but the shapes depend on; checked in each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// Must not be negative; must be zero if `equal`.
    pub dim: Dim,
    /// The expression must be zero.
    pub equal: bool,
    /// What a violation means, with both sides as the model states them.
    pub meaning: String,
}

impl Assumption {
    /// True if the other states the same condition.
    pub fn same_condition(&self, other: &Self) -> bool {
        self.equal == other.equal && self.dim == other.dim
    }
}

/// Input of [`Op::infer`].
#[derive(Debug)]
pub struct InferCx<'a> {
    /// Facts of the operands.
    pub inputs: &'a [Option<&'a Fact>],
    /// Names of operands and results, used to name symbols of unknown sizes.
    names: Option<(&'a [&'a str], &'a [&'a str])>,
    constraints: &'a Constraints,
    made: RefCell<Vec<DataDependentDim>>,
    assumed: RefCell<Vec<Assumption>>,
}

impl<'a> InferCx<'a> {
    /// A context for operands with these facts; `constraints` are those of their symbols.
    pub fn new(inputs: &'a [Option<&'a Fact>], constraints: &'a Constraints) -> Self {
        Self {
            inputs,
            names: None,
            constraints,
            made: RefCell::default(),
            assumed: RefCell::default(),
        }
    }

    /// Sets the names of operands and results.
    #[must_use]
    pub fn named(mut self, inputs: &'a [&'a str], outputs: &'a [&'a str]) -> Self {
        self.names = Some((inputs, outputs));
        self
    }

    /// The symbols and assumptions made by [`Op::infer`].
    pub fn finish(self) -> (Vec<DataDependentDim>, Vec<Assumption>) {
        (self.made.into_inner(), self.assumed.into_inner())
    }

    /// Constraints on the symbols.
    pub fn constraints(&self) -> &Constraints {
        self.constraints
    }

    /// Number of results that are read, if known.
    pub fn output_count(&self) -> Option<usize> {
        self.names.map(|(_, outputs)| outputs.len())
    }

    /// The fact of operand `i`; an error if it is omitted.
    pub fn fact(&self, i: usize) -> OpResult<&Fact> {
        self.opt(i)
            .ok_or_else(|| OpError::expected(format!("input {i}"), "a value", "none"))
    }

    /// The fact of operand `i`, whose element type must be one of `types`; an error if it is
    /// omitted.
    pub fn typed(&self, i: usize, types: Types) -> OpResult<&Fact> {
        let fact = self.fact(i)?;
        if (types.contains)(fact.dtype) {
            return Ok(fact);
        }
        Err(OpError::expected(type_of(i), types.name, fact.dtype))
    }

    /// Requires the element type of operand `i` to be one of `types`, if it is given.
    pub fn typed_if_given(&self, i: usize, types: Types) -> OpResult<()> {
        self.opt(i).map_or(Ok(()), |_| self.typed(i, types).map(|_| ()))
    }

    /// The fact of operand `i`, which must be a float of at most 32 bits.
    pub fn float(&self, i: usize) -> OpResult<&Fact> {
        let fact = self.typed(i, Types::FLOAT)?;
        if fact.dtype == DType::F64 {
            return Err(OpError::Unsupported(format!("{} f64", type_of(i))));
        }
        Ok(fact)
    }

    /// The fact of operand `i`, if given.
    pub fn opt(&self, i: usize) -> Option<&Fact> {
        self.inputs.get(i).copied().flatten()
    }

    /// The elements of integer operand `i` as expressions; an error if they are unknown.
    pub fn dims(&self, i: usize) -> OpResult<Vec<Dim>> {
        self.typed(i, Types::INTEGER)?.as_dims().ok_or_else(|| {
            OpError::Unsupported(format!(
                "input {i} that depends on data (its values must be known before the run)"
            ))
        })
    }

    /// The elements of integer operand `i`, interpreted as sizes. An element that depends on data
    /// becomes a new symbol, whose value is read in the run. Only the number of elements must be
    /// known.
    pub fn sizes(&self, i: usize) -> OpResult<Vec<Dim>> {
        let fact = self.typed(i, Types::INTEGER)?;
        if let Some(dims) = fact.as_dims() {
            return Ok(dims);
        }
        let count = fact
            .shape
            .count()?
            .as_const()
            .and_then(|n| usize::try_from(n).ok());
        let count = count.filter(|n| *n <= MAX_KNOWN).ok_or_else(|| {
            OpError::expected(
                format!("input {i}"),
                format!("a fixed number of integers (at most {MAX_KNOWN})"),
                fact,
            )
        })?;
        let name = self
            .names
            .and_then(|(inputs, _)| inputs.get(i).copied())
            .unwrap_or("data");
        let make = |index| {
            self.make(
                &format!("{name}_{index}"),
                DimSource::Element { input: i, index },
                None,
            )
        };
        Ok((0..count).map(make).collect())
    }

    /// A new symbol for the size of result `output` along `axis`, which is known only in the run.
    /// The node then runs on the host. `at_most` is an upper bound, if known.
    pub fn unknown(&self, output: usize, axis: usize, at_most: Option<Dim>) -> Dim {
        let name = self
            .names
            .and_then(|(_, outputs)| outputs.get(output).copied())
            .unwrap_or("result");
        self.make(
            &format!("{name}_{axis}"),
            DimSource::Size { output, axis },
            at_most,
        )
    }

    fn make(&self, name: &str, source: DimSource, at_most: Option<Dim>) -> Dim {
        let symbol = Symbol::new(name);
        let dim = Dim::from(&symbol);
        let mut made = self.made.borrow_mut();
        if made.iter().all(|m| m.source != source) {
            made.push(DataDependentDim {
                symbol,
                source,
                at_most,
            });
        }
        dim
    }

    /// One of two sizes that must be equal. An equality that depends on symbols becomes an
    /// assumption that each run checks. `what` names the two, in the plural.
    pub fn same(&self, what: &'static str, a: &Dim, b: &Dim) -> OpResult<Dim> {
        match self.constraints.equal(a, b) {
            Some(true) => Ok(a.clone()),
            Some(false) => Err(OpError::mismatch(what, a, b)),
            None => {
                let meaning = format!("{what} differ: {a} (left) and {b} (right)");
                self.assumed.borrow_mut().push(Assumption {
                    dim: a.sub(b)?,
                    equal: true,
                    meaning,
                });
                // Prefer a number over an expression, and a polynomial over `min` or `max`.
                let plainer = b.as_const().is_some() || b.is_polynomial() && !a.is_polynomial();
                Ok(if plainer { b.clone() } else { a.clone() })
            }
        }
    }

    /// Two shapes under multidirectional broadcasting; see [`rules::broadcast`].
    pub fn broadcast(&self, a: &[Dim], b: &[Dim]) -> OpResult<Shape> {
        rules::broadcast(a, b, &|what, a, b| self.same(what, a, b))
    }

    /// Requires that `dim` is not negative in any run; `meaning` describes `dim` in the error.
    pub fn require(&self, dim: Dim, meaning: &str) -> OpResult<()> {
        match self.constraints.at_least(&dim, 0) {
            Some(true) => Ok(()),
            Some(false) => Err(OpError::expected(meaning, "0 or more", &dim)),
            None => {
                self.assumed.borrow_mut().push(Assumption {
                    dim,
                    equal: false,
                    meaning: meaning.to_owned(),
                });
                Ok(())
            }
        }
    }

    /// Adds the assumptions of nested operators.
    pub fn assume(&self, list: impl IntoIterator<Item = Assumption>) {
        self.assumed.borrow_mut().extend(list);
    }

    /// Infers the results of another operator for operands with these facts, adding its
    /// assumptions.
    pub fn of(&self, op: &dyn Op, inputs: &[Option<&Fact>]) -> OpResult<Vec<Fact>> {
        let inner = InferCx::new(inputs, self.constraints);
        let facts = op.infer(&inner)?;
        self.assume(inner.finish().1);
        Ok(facts)
    }

    /// The elements of integer operand `i`; an error unless they are constant.
    pub fn ints(&self, i: usize) -> OpResult<Vec<i64>> {
        self.dims(i)?
            .iter()
            .map(|d| {
                d.as_const()
                    .ok_or_else(|| OpError::expected(format!("input {i}"), "constant integers", d))
            })
            .collect()
    }
}

fn type_of(input: usize) -> String {
    if input == 0 {
        "element type".to_owned()
    } else {
        format!("element type of input {input}")
    }
}
