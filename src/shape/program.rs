//! Many expressions compiled into one flat list of steps over numbers.
//!
//! Equal parts of the expressions are computed once. Evaluation allocates nothing, is checked as [`Dim::eval`] is and gives
//! the same values and refuses the same bindings. [`Program::eval_changed`] computes again only what depends on a symbol with
//! a new value, and tells which expressions changed.

use super::dim::{Atom, Dim, DimError};
use super::symbol::{Bindings, Symbol};
use std::collections::HashMap;

/// Why a program gave no values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// An expression has no value under the given values of the symbols.
    #[error("{expression} with {bindings}: {source}")]
    Value {
        /// The expression, one of those that were compiled.
        expression: String,
        /// The symbols in it and their values.
        bindings: String,
        /// What went wrong in it.
        source: DimError,
    },
    /// A slice is not as long as the list that it belongs to.
    #[error("{what}: expected {expected}, found {found}")]
    Length {
        /// What the slice holds.
        what: &'static str,
        /// The right length.
        expected: usize,
        /// The length given.
        found: usize,
    },
}

/// One operation. Operands are slots; the result goes to the slot of the same position after symbols and constants.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// `constant` and the products of [`Program::parts`] in the range.
    Sum {
        constant: i64,
        from: u32,
        to: u32,
    },
    Mul(u32, u32),
    /// Divisor above 0.
    FloorBy(u32, i64),
    Floor(u32, u32),
    Min(u32, u32),
    Max(u32, u32),
}

/// A compiled step with what it hangs on.
#[derive(Clone, Copy, Debug)]
struct Line {
    step: Step,
    /// The slot of the result.
    to: u32,
    /// The symbols behind it; see [`Program::depends`].
    mask: u64,
    /// The first expression that needs it.
    origin: u32,
}

/// See the module documentation.
///
/// ```
/// use transformer_lite::shape::{Dim, Program, Symbol};
///
/// let d = |text| Dim::parse(text).unwrap();
/// let mut program = Program::compile(
///     &[d("(past + N + 63)//64*64"), d("N*4096"), d("past + N")],
///     &[Symbol::new("N"), Symbol::new("past")],
/// )?;
/// let (mut out, mut dirty) = ([0; 3], Vec::new());
/// program.eval(&[1, 100], &mut out).unwrap();
/// assert_eq!(out, [128, 4096, 101]);
/// program.eval_changed(&[1, 101], &mut out, &mut dirty).unwrap();
/// assert_eq!((out, dirty), ([128, 4096, 102], vec![2]));
/// # Ok::<(), transformer_lite::shape::DimError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    exprs: Vec<Dim>,
    symbols: Vec<Symbol>,
    lines: Vec<Line>,
    /// Slot and factor of each product in a sum.
    parts: Vec<(u32, i64)>,
    /// Values: symbols, then constants and results in the order in which they were met.
    slots: Vec<i64>,
    /// The slot of each expression and what it depends on.
    roots: Vec<(u32, u64)>,
    /// Expressions by slot: those of slot `s` are `readers[starts[s]..starts[s + 1]]`.
    readers: Vec<u32>,
    starts: Vec<u32>,
    /// Slots with a new value, during an evaluation.
    changed: Vec<u32>,
    /// The values of `slots` belong together.
    ready: bool,
}

/// Bit of symbol `index` in a mask: from 63 on they share one.
fn bit(index: usize) -> u64 {
    1 << index.min(63)
}

#[derive(Default)]
struct Compiler {
    symbols: HashMap<Symbol, u32>,
    lines: Vec<Line>,
    parts: Vec<(u32, i64)>,
    slots: Vec<i64>,
    masks: Vec<u64>,
    dims: HashMap<Dim, u32>,
    atoms: HashMap<Atom, u32>,
    products: HashMap<Vec<Atom>, u32>,
    origin: u32,
}

impl Compiler {
    fn slot(&mut self, value: i64, mask: u64) -> u32 {
        self.slots.push(value);
        self.masks.push(mask);
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    fn mask(&self, slot: u32) -> u64 {
        self.masks.get(slot as usize).copied().unwrap_or(0)
    }

    fn emit(&mut self, step: Step, mask: u64) -> u32 {
        let to = self.slot(0, mask);
        let origin = self.origin;
        self.lines.push(Line {
            step,
            to,
            mask,
            origin,
        });
        to
    }

    fn two(&mut self, step: fn(u32, u32) -> Step, a: u32, b: u32) -> u32 {
        let mask = self.mask(a) | self.mask(b);
        self.emit(step(a, b), mask)
    }

    fn dim(&mut self, d: &Dim) -> Result<u32, DimError> {
        if let Some(slot) = self.dims.get(d) {
            return Ok(*slot);
        }
        let slot = match (d.terms(), d.constant()) {
            ([], v) => self.slot(v, 0),
            ([t], 0) if t.factor == 1 => self.product(&t.product)?,
            (terms, constant) => {
                let mut parts = Vec::with_capacity(terms.len());
                let mut mask = 0;
                for t in terms {
                    let slot = self.product(&t.product)?;
                    mask |= self.mask(slot);
                    parts.push((slot, t.factor));
                }
                let position = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
                let from = position(self.parts.len());
                self.parts.extend(parts);
                let to = position(self.parts.len());
                self.emit(Step::Sum { constant, from, to }, mask)
            }
        };
        self.dims.insert(d.clone(), slot);
        Ok(slot)
    }

    fn product(&mut self, atoms: &[Atom]) -> Result<u32, DimError> {
        let (last, before) = match atoms {
            [] => return Ok(self.slot(1, 0)),
            [atom] => return self.atom(atom),
            [before @ .., last] => (last, before),
        };
        if let Some(slot) = self.products.get(atoms) {
            return Ok(*slot);
        }
        let before = self.product(before)?;
        let last = self.atom(last)?;
        let slot = self.two(Step::Mul, before, last);
        self.products.insert(atoms.to_vec(), slot);
        Ok(slot)
    }

    fn atom(&mut self, atom: &Atom) -> Result<u32, DimError> {
        if let Atom::Symbol(s) = atom {
            return self
                .symbols
                .get(s)
                .copied()
                .ok_or_else(|| DimError::Unbound(s.clone()));
        }
        if let Some(slot) = self.atoms.get(atom) {
            return Ok(*slot);
        }
        let slot = match atom {
            Atom::Symbol(s) => return Err(DimError::Unbound(s.clone())),
            Atom::Floor(f) => {
                let num = self.dim(&f.num)?;
                match f.den.as_const() {
                    Some(n) => {
                        let mask = self.mask(num);
                        self.emit(Step::FloorBy(num, n), mask)
                    }
                    None => {
                        let den = self.dim(&f.den)?;
                        self.two(Step::Floor, num, den)
                    }
                }
            }
            Atom::Min(c) => self.chain(&c.args, Step::Min)?,
            Atom::Max(c) => self.chain(&c.args, Step::Max)?,
        };
        self.atoms.insert(atom.clone(), slot);
        Ok(slot)
    }

    fn chain(&mut self, args: &[Dim], step: fn(u32, u32) -> Step) -> Result<u32, DimError> {
        let mut best = None;
        for a in args {
            let slot = self.dim(a)?;
            best = Some(match best {
                None => slot,
                Some(b) => self.two(step, b, slot),
            });
        }
        Ok(best.unwrap_or_else(|| self.slot(0, 0)))
    }
}

impl Program {
    /// Compiles `exprs` for values of `symbols`. An expression with another symbol is [`DimError::Unbound`].
    pub fn compile(exprs: &[Dim], symbols: &[Symbol]) -> Result<Self, DimError> {
        let mut c = Compiler::default();
        for (i, s) in symbols.iter().enumerate() {
            let slot = c.slot(0, bit(i));
            c.symbols.entry(s.clone()).or_insert(slot);
        }
        let mut roots = Vec::with_capacity(exprs.len());
        for (i, e) in (0..).zip(exprs) {
            c.origin = i;
            let slot = c.dim(e)?;
            roots.push((slot, c.mask(slot)));
        }
        let mut order: Vec<(u32, u32)> = roots.iter().zip(0..).map(|((slot, _), i)| (*slot, i)).collect();
        order.sort_unstable();
        let mut starts = Vec::with_capacity(c.slots.len() + 1);
        for slot in 0..=c.slots.len() {
            let before = order.partition_point(|(s, _)| (*s as usize) < slot);
            starts.push(u32::try_from(before).unwrap_or(u32::MAX));
        }
        Ok(Self {
            exprs: exprs.to_vec(),
            symbols: symbols.to_vec(),
            changed: Vec::with_capacity(c.slots.len()),
            lines: c.lines,
            parts: c.parts,
            slots: c.slots,
            roots,
            readers: order.into_iter().map(|(_, i)| i).collect(),
            starts,
            ready: false,
        })
    }

    /// Number of expressions.
    pub fn len(&self) -> usize {
        self.exprs.len()
    }

    /// True when there is no expression.
    pub fn is_empty(&self) -> bool {
        self.exprs.is_empty()
    }

    /// Number of operations of a full evaluation.
    pub fn steps(&self) -> usize {
        self.lines.len()
    }

    /// The symbols, in the order of their values.
    pub fn symbols(&self) -> &[Symbol] {
        &self.symbols
    }

    /// The expressions, in the order of their results.
    pub fn exprs(&self) -> &[Dim] {
        &self.exprs
    }

    /// The symbols that expression `index` depends on: bit `i` for symbol `i`, and bit 63 for all from 63 on.
    pub fn depends(&self, index: usize) -> u64 {
        self.roots.get(index).map_or(0, |(_, mask)| *mask)
    }

    /// All expressions for the values of the symbols, in order. After an error `out` is as it was.
    pub fn eval(&mut self, values: &[i64], out: &mut [i64]) -> Result<(), ProgramError> {
        self.lengths(values, out)?;
        self.ready = false;
        self.compute(values)?;
        for ((slot, _), o) in self.roots.iter().zip(out) {
            *o = self.slots.get(*slot as usize).copied().unwrap_or(0);
        }
        Ok(())
    }

    /// As [`Program::eval`], where `out` holds the results of the evaluation before: computes and writes only what differs, and
    /// puts the indices of those expressions into `dirty`, which is cleared first. All are in it after an error, and when it is
    /// the first evaluation. Allocates only where `dirty` has less room than there are expressions.
    pub fn eval_changed(
        &mut self,
        values: &[i64],
        out: &mut [i64],
        dirty: &mut Vec<u32>,
    ) -> Result<(), ProgramError> {
        self.lengths(values, out)?;
        dirty.clear();
        if !self.ready {
            self.eval(values, out)?;
            dirty.extend((0..).take(out.len()));
            return Ok(());
        }
        self.compute(values)?;
        for slot in &self.changed {
            let at = *slot as usize;
            let value = self.slots.get(at).copied().unwrap_or(0);
            let bound = |i: usize| self.starts.get(i).map_or(0, |s| *s as usize);
            for reader in self.readers.get(bound(at)..bound(at + 1)).unwrap_or_default() {
                if let Some(o) = out.get_mut(*reader as usize) {
                    *o = value;
                }
                dirty.push(*reader);
            }
        }
        Ok(())
    }

    fn lengths(&self, values: &[i64], out: &[i64]) -> Result<(), ProgramError> {
        for (what, expected, found) in [
            ("values of symbols", self.symbols.len(), values.len()),
            ("results", self.exprs.len(), out.len()),
        ] {
            if expected != found {
                return Err(ProgramError::Length {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }

    /// Brings `slots` up to date, and lists those that changed.
    fn compute(&mut self, values: &[i64]) -> Result<(), ProgramError> {
        self.changed.clear();
        let mut mask = if self.ready { 0 } else { u64::MAX };
        for (i, (slot, v)) in (0..).zip(self.slots.iter_mut().zip(values)) {
            if *slot != *v {
                *slot = *v;
                mask |= bit(i);
                self.changed.push(u32::try_from(i).unwrap_or(u32::MAX));
            }
        }
        let full = !self.ready;
        self.ready = false;
        for line in &self.lines {
            if line.mask & mask == 0 && !full {
                continue;
            }
            let Some(v) = run(line.step, &self.slots, &self.parts) else {
                return Err(self.failed(line.origin, values));
            };
            if let Some(slot) = self.slots.get_mut(line.to as usize)
                && *slot != v
            {
                *slot = v;
                self.changed.push(line.to);
            }
        }
        self.ready = true;
        Ok(())
    }

    /// Evaluates the expression again, slowly, for the reason.
    fn failed(&self, origin: u32, values: &[i64]) -> ProgramError {
        let mut bindings = Bindings::new();
        for (s, v) in self.symbols.iter().zip(values) {
            if bindings.get(s).is_none() {
                bindings.set(s, *v);
            }
        }
        let expr = self.exprs.get(origin as usize).cloned().unwrap_or_default();
        let expression = expr.to_string();
        let mut inside = std::collections::BTreeSet::new();
        expr.symbols(&mut inside);
        let one = |s: &Symbol| bindings.get(s).map(|v| format!("{s}={v}"));
        ProgramError::Value {
            source: match expr.eval(&bindings) {
                Err(e) => e,
                Ok(_) => DimError::Overflow(expression.clone()),
            },
            expression,
            bindings: inside.iter().filter_map(one).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The value of one step; `None` where it overflows or divides by what is not positive.
fn run(step: Step, slots: &[i64], parts: &[(u32, i64)]) -> Option<i64> {
    let at = |slot: u32| slots.get(slot as usize).copied();
    Some(match step {
        Step::Sum { constant, from, to } => {
            let mut sum = constant;
            for (slot, factor) in parts.get(from as usize..to as usize)? {
                sum = sum.checked_add(at(*slot)?.checked_mul(*factor)?)?;
            }
            sum
        }
        Step::Mul(a, b) => at(a)?.checked_mul(at(b)?)?,
        Step::FloorBy(a, n) => at(a)?.checked_div_euclid(n)?,
        Step::Floor(a, b) => {
            let divisor = at(b).filter(|v| *v > 0)?;
            at(a)?.checked_div_euclid(divisor)?
        }
        Step::Min(a, b) => at(a)?.min(at(b)?),
        Step::Max(a, b) => at(a)?.max(at(b)?),
    })
}
