//! Binds the values of symbols: computes the parameters, grids and live values of a run, without
//! allocation, and only for expressions that changed.

use super::{Condition, Padding, Plan};
use crate::backend::Launch;
use crate::backend::kernel::FieldTy;
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::num;
use crate::shape::{Bindings, Dim, DimError, Shape, Symbol};
use std::collections::{BTreeSet, HashMap};

/// Destination of an expression's value.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// Four bytes of the parameters.
    Param { at: u32, ty: FieldTy, step: usize },
    /// One axis of a grid.
    Grid { step: usize, axis: u8 },
    /// A number that the executor reads by index.
    Plain,
}

/// All expressions of a plan, and the destinations of their values.
#[derive(Clone, Debug, Default)]
pub(super) struct Formulas {
    symbols: Vec<Symbol>,
    /// The position of each in `symbols`.
    slots: HashMap<Symbol, usize>,
    /// The largest value of each symbol; `None` for a symbol that data defines.
    bounds: Vec<Option<i64>>,
    /// The padded symbol, by its position in `symbols`.
    padded: Option<(usize, Padding)>,
    /// Expressions over padded lengths.
    pub exprs: Vec<Dim>,
    index: HashMap<Dim, usize>,
    uses: Vec<Vec<Use>>,
    /// Expressions over exact lengths, with their positions in the table that kernels read.
    live: Vec<(usize, Dim)>,
    /// For each symbol: the expressions, live expressions and conditions that contain it.
    by_symbol: Vec<Readers>,
    /// Symbols of each expression, live expression and condition, as positions in `symbols`.
    expr_slots: Vec<Vec<usize>>,
    live_slots: Vec<Vec<usize>>,
    condition_slots: Vec<Vec<usize>>,
    params_bytes: usize,
    steps: usize,
}

#[derive(Clone, Debug, Default)]
struct Readers {
    exprs: Vec<usize>,
    live: Vec<usize>,
    conditions: Vec<usize>,
}

/// The changing part of a plan: values of the last run, and the parameters and grids computed from
/// them.
#[derive(Clone, Debug, Default)]
pub struct LaunchState {
    pub launch: Launch,
    /// The table that kernels read.
    pub live: Vec<i32>,
    live_changed: bool,
    grids_changed: bool,
    /// Values of symbols in this run; those that data defines are added during the run.
    exact: Bindings,
    /// The same with padded lengths.
    padded: Bindings,
    /// Whether the symbol has a value in this run.
    known: Vec<bool>,
    stale: Vec<bool>,
    values: Vec<i64>,
    ready: bool,
    /// Number of expressions evaluated so far, including live ones and conditions.
    evaluated: u64,
}

impl LaunchState {
    /// Number of expressions evaluated since the plan was loaded: for parameters and grids, live
    /// values and conditions.
    pub fn evaluated(&self) -> u64 {
        self.evaluated
    }

    /// The values of this run.
    pub fn bindings(&self) -> &Bindings {
        &self.exact
    }

    /// Whether the table that kernels read has changed since [`LaunchState::live_is_written`].
    pub fn live_changed(&self) -> bool {
        self.live_changed
    }

    /// Marks the table as written to the device.
    pub fn live_is_written(&mut self) {
        self.live_changed = false;
    }

    /// Whether a grid has changed since [`LaunchState::grids_are_checked`].
    pub fn grids_changed(&self) -> bool {
        self.grids_changed
    }

    /// Marks the grids as checked against the device's limits.
    pub fn grids_are_checked(&mut self) {
        self.grids_changed = false;
    }
}

/// Why an expression cannot be stored.
enum Failure {
    /// It has no value.
    Dim { dim: Dim, why: DimError },
    /// Its value does not fit 32 bits.
    Range { dim: Dim, value: i64, step: usize },
}

/// `N = 3, past = 5`: the symbols of `dims` with their values, from the first bindings that contain
/// them.
fn values_of<'a>(dims: impl IntoIterator<Item = &'a Dim>, bindings: &[&Bindings]) -> String {
    let mut symbols = BTreeSet::new();
    dims.into_iter().for_each(|d| d.symbols(&mut symbols));
    let one = |s: &Symbol| match bindings.iter().find_map(|b| b.get(s)) {
        Some(v) => format!("{s} = {v}"),
        None => format!("{s} is unknown"),
    };
    symbols.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// ` at N = 3`, or an empty text.
fn at(values: &str) -> String {
    if values.is_empty() {
        String::new()
    } else {
        format!(", at {values}")
    }
}

impl Formulas {
    /// Creates the formulas with the symbols of a plan.
    pub fn new(bounds: &Bindings, open: &[Symbol], made: &[Symbol], padding: Option<&Padding>) -> Self {
        let mut symbols: Vec<Symbol> = bounds.iter().map(|(s, _)| s.clone()).collect();
        let mut limits: Vec<Option<i64>> = bounds.iter().map(|(_, v)| Some(v)).collect();
        symbols.extend(open.iter().cloned());
        // Limit 0 until memory is reserved.
        limits.resize(symbols.len(), Some(0));
        symbols.extend(made.iter().cloned());
        limits.resize(symbols.len(), None);
        let mut slots = HashMap::new();
        for (i, s) in symbols.iter().enumerate() {
            slots.entry(s.clone()).or_insert(i);
        }
        let padded = padding.and_then(|p| Some((*slots.get(&p.symbol)?, p.clone())));
        Self {
            by_symbol: vec![Readers::default(); symbols.len()],
            symbols,
            slots,
            bounds: limits,
            padded,
            ..Self::default()
        }
    }

    fn slots(&self, dim: &Dim) -> Result<Vec<usize>, DimError> {
        let mut all = BTreeSet::new();
        dim.symbols(&mut all);
        let slot = |s: Symbol| self.slots.get(&s).copied().ok_or(DimError::Unbound(s));
        all.into_iter().map(slot).collect()
    }

    /// Sets the largest value of a symbol.
    pub fn set_limit(&mut self, symbol: &Symbol, limit: i64) {
        if let Some(slot) = self.slots.get(symbol)
            && let Some(bound) = self.bounds.get_mut(*slot)
        {
            *bound = Some(limit);
        }
    }

    /// The index of an expression, which is added if it is new.
    pub fn expr(&mut self, dim: &Dim) -> Result<usize, DimError> {
        if let Some(i) = self.index.get(dim) {
            return Ok(*i);
        }
        let slots = self.slots(dim)?;
        let i = self.exprs.len();
        for s in &slots {
            self.by_symbol[*s].exprs.push(i);
        }
        self.exprs.push(dim.clone());
        self.expr_slots.push(slots);
        self.uses.push(vec![Use::Plain]);
        self.index.insert(dim.clone(), i);
        Ok(i)
    }

    /// Stores `dim` in the four bytes of the parameters at `at`.
    pub fn param(&mut self, dim: &Dim, at: u32, ty: FieldTy, step: usize) -> Result<usize, DimError> {
        let i = self.expr(dim)?;
        self.uses[i].push(Use::Param { at, ty, step });
        Ok(i)
    }

    /// Stores `dim` in a grid.
    pub fn grid(&mut self, dim: &Dim, step: usize, axis: u8) -> Result<usize, DimError> {
        let i = self.expr(dim)?;
        self.uses[i].push(Use::Grid { step, axis });
        Ok(i)
    }

    /// Sets the table that kernels read, the number of parameter bytes and steps, and the
    /// conditions.
    pub fn finish(
        &mut self,
        live: Vec<(usize, Dim)>,
        conditions: &[Condition],
        params_bytes: u32,
        steps: usize,
    ) -> Result<(), DimError> {
        for (i, (_, dim)) in live.iter().enumerate() {
            let slots = self.slots(dim)?;
            for s in &slots {
                self.by_symbol[*s].live.push(i);
            }
            self.live_slots.push(slots);
        }
        for (i, c) in conditions.iter().enumerate() {
            let slots = self.slots(&c.dim)?;
            for s in &slots {
                self.by_symbol[*s].conditions.push(i);
            }
            self.condition_slots.push(slots);
        }
        self.live = live;
        self.params_bytes = params_bytes as usize;
        self.steps = steps;
        Ok(())
    }

    /// Size of the table that kernels read.
    pub fn live_count(&self) -> usize {
        self.live.last().map_or(0, |(at, _)| at + 1)
    }

    /// The expressions of that table, by increasing position.
    pub fn live(&self) -> &[(usize, Dim)] {
        &self.live
    }

    /// The expression with this index.
    pub fn at(&self, expr: usize) -> &Dim {
        &self.exprs[expr]
    }

    fn evaluate(&self, bound: &mut LaunchState, expr: usize) -> Result<(), Failure> {
        let dim = &self.exprs[expr];
        let value = dim.eval(&bound.padded).map_err(|why| Failure::Dim {
            dim: dim.clone(),
            why,
        })?;
        bound.evaluated += 1;
        bound.stale[expr] = false;
        bound.values[expr] = value;
        for u in &self.uses[expr] {
            match *u {
                Use::Plain => {}
                Use::Param { at, ty, step } => {
                    let range = |_| Failure::Range {
                        dim: dim.clone(),
                        value,
                        step,
                    };
                    let bytes = match ty {
                        FieldTy::I32 => i32::try_from(value).map_err(range)?.to_le_bytes(),
                        FieldTy::U32 | FieldTy::F32 => u32::try_from(value).map_err(range)?.to_le_bytes(),
                    };
                    if let Some(slot) = bound.launch.params.get_mut(at as usize..at as usize + 4) {
                        slot.copy_from_slice(&bytes);
                    }
                }
                Use::Grid { step, axis } => {
                    let v = u32::try_from(value).map_err(|_| Failure::Range {
                        dim: dim.clone(),
                        value,
                        step,
                    })?;
                    if let Some(slot) = bound
                        .launch
                        .grids
                        .get_mut(step)
                        .and_then(|g| g.get_mut(axis as usize))
                        && *slot != v
                    {
                        *slot = v;
                        bound.grids_changed = true;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Plan {
    /// Computes the parameters, grids and live values of one run in `bound`, which starts as its
    /// default and belongs to this plan from then on. Only expressions of changed symbols are
    /// evaluated.
    ///
    /// Every symbol of [`Plan::bounds`] must be bound within its bound; symbols that data defines
    /// follow by [`Plan::define`]. Errors name the symbol, node or expression, and the values.
    pub fn bind(&self, bindings: &Bindings, bound: &mut LaunchState) -> Result<()> {
        let f = &self.formulas;
        if !bound.ready {
            self.prepare(bound)?;
        }
        // After an error, earlier results are not valid.
        bound.ready = false;
        for slot in 0..f.symbols.len() {
            bound.known[slot] = false;
        }
        let mut changed = false;
        for (slot, symbol) in f.symbols.iter().enumerate() {
            let Some(limit) = f.bounds[slot] else {
                bound.exact.remove(symbol);
                continue;
            };
            match bindings.get(symbol) {
                Some(v) if (0..=limit).contains(&v) => changed |= self.set(bound, slot, v),
                Some(v) => {
                    return Err(Error::other(
                        Stage::Run,
                        format!("{symbol} = {v} is out of range; this plan supports 0 to {limit}"),
                    ));
                }
                None => return Err(unbound(symbol)),
            }
        }
        if changed {
            for slot in 0..f.symbols.len() {
                if bound.known[slot] {
                    self.propagate(bound, slot)?;
                }
            }
        }
        bound.ready = true;
        Ok(())
    }

    /// Sets the value, in this run, of a symbol that data defines.
    pub fn define(&self, symbol: &Symbol, value: i64, bound: &mut LaunchState) -> Result<()> {
        let Some(slot) = self.formulas.slots.get(symbol).copied() else {
            return Ok(());
        };
        if value < 0 {
            return Err(Error::other(
                Stage::Run,
                format!("{symbol} = {value}: a size cannot be negative"),
            ));
        }
        bound.ready = false;
        self.set(bound, slot, value);
        self.propagate(bound, slot)?;
        bound.ready = true;
        Ok(())
    }

    fn prepare(&self, bound: &mut LaunchState) -> Result<()> {
        let f = &self.formulas;
        let evaluated = bound.evaluated;
        *bound = LaunchState {
            known: vec![false; f.symbols.len()],
            stale: vec![true; f.exprs.len()],
            values: vec![0; f.exprs.len()],
            live: vec![0; f.live_count()],
            live_changed: true,
            grids_changed: true,
            evaluated,
            ..LaunchState::default()
        };
        bound.launch.params.resize(f.params_bytes, 0);
        bound.launch.grids.resize(f.steps, [0; 3]);
        for step in &self.steps {
            for (at, (_, value)) in (step.params.start as usize..).step_by(4).zip(&step.fields) {
                if let (super::FieldValue::F32(v), Some(slot)) =
                    (value, bound.launch.params.get_mut(at..at + 4))
                {
                    slot.copy_from_slice(&v.to_le_bytes());
                }
            }
        }
        for i in (0..f.exprs.len()).filter(|i| f.expr_slots[*i].is_empty()) {
            f.evaluate(bound, i).map_err(|e| self.failed(&e, bound))?;
        }
        for entry in &f.live {
            if let Some(v) = entry.1.as_const() {
                self.set_live(bound, entry, v)?;
            }
        }
        for c in self.conditions.iter().filter(|c| c.dim.as_const().is_some()) {
            self.check(c, bound)?;
        }
        Ok(())
    }

    /// Sets the value of a symbol. Returns whether an expression must be evaluated.
    fn set(&self, bound: &mut LaunchState, slot: usize, value: i64) -> bool {
        let f = &self.formulas;
        let symbol = &f.symbols[slot];
        bound.known[slot] = true;
        let padded = match &f.padded {
            Some((at, p)) if *at == slot => p.apply(value, f.bounds[slot].unwrap_or(i64::MAX)),
            _ => value,
        };
        let made = f.bounds[slot].is_none();
        let moved = bound.exact.get(symbol) != Some(value);
        if bound.padded.get(symbol) != Some(padded) {
            bound.padded.set(symbol, padded);
            for e in &f.by_symbol[slot].exprs {
                bound.stale[*e] = true;
            }
        }
        bound.exact.set(symbol, value);
        moved || made
    }

    /// Evaluates the expressions that depend on a symbol and whose symbols are all known.
    fn propagate(&self, bound: &mut LaunchState, slot: usize) -> Result<()> {
        let f = &self.formulas;
        let readers = &f.by_symbol[slot];
        let known = |slots: &[usize], bound: &LaunchState| slots.iter().all(|s| bound.known[*s]);
        for &c in &readers.conditions {
            if known(&f.condition_slots[c], bound) {
                bound.evaluated += 1;
                self.check(&self.conditions[c], bound)?;
            }
        }
        for &e in &readers.exprs {
            if bound.stale[e] && known(&f.expr_slots[e], bound) {
                f.evaluate(bound, e).map_err(|e| self.failed(&e, bound))?;
            }
        }
        for &i in &readers.live {
            if known(&f.live_slots[i], bound) {
                bound.evaluated += 1;
                let v = exact(&f.live[i].1, bound)?;
                self.set_live(bound, &f.live[i], v)?;
            }
        }
        Ok(())
    }

    fn set_live(&self, bound: &mut LaunchState, (at, dim): &(usize, Dim), v: i64) -> Result<()> {
        let v = i32::try_from(v).map_err(|_| {
            let what = format!("{dim} = {v} does not fit in a 32-bit integer on the device");
            Error::other(Stage::Run, what)
        })?;
        if bound.live[*at] != v {
            bound.live[*at] = v;
            bound.live_changed = true;
        }
        Ok(())
    }

    fn check(&self, c: &Condition, bound: &LaunchState) -> Result<()> {
        let v = exact(&c.dim, bound)?;
        if v < 0 || c.equal && v != 0 {
            let expected = if c.equal { "0" } else { "0 or more" };
            let values = values_of([&c.given], &[&bound.exact, &self.fixed]);
            let what = format!(
                "{}: {} is {v}, expected {expected}{}",
                c.meaning,
                c.given,
                at(&values)
            );
            return Err(mismatch(what));
        }
        Ok(())
    }

    fn failed(&self, failure: &Failure, bound: &LaunchState) -> Error {
        let (dim, what, nodes) = match failure {
            Failure::Dim { dim, why } => (dim, why.to_string(), None),
            Failure::Range { dim, value, step } => (
                dim,
                format!("{dim} = {value} does not fit in a 32-bit integer on the device"),
                self.steps.get(*step).map(|s| s.nodes.join("\", \"")),
            ),
        };
        let nodes = nodes.map_or_else(String::new, |n| format!("nodes \"{n}\": "));
        let values = values_of([dim], &[&bound.padded]);
        Error::other(Stage::Run, format!("{nodes}{what}{}", at(&values)))
    }
}

/// An error for a symbol without a value.
pub(super) fn unbound(symbol: &Symbol) -> Error {
    let what = format!("symbol {symbol} has no value");
    Error::other(Stage::Run, what).of_kind(ErrorKind::MissingInput)
}

fn mismatch(what: String) -> Error {
    Error::other(Stage::Run, what).of_kind(ErrorKind::ShapeMismatch)
}

/// The value of an expression at the run's exact lengths.
fn exact(dim: &Dim, bound: &LaunchState) -> Result<i64> {
    dim.eval(&bound.exact).map_err(|e| {
        let values = values_of([dim], &[&bound.exact]);
        Error::other(Stage::Run, format!("{dim}: {e}{}", at(&values)))
    })
}

/// Checks the shape of a tensor against the expected one; `what` names the tensor in errors.
pub fn check_shape(
    what: &dyn std::fmt::Display,
    expected: &Shape,
    found: &[usize],
    bindings: &Bindings,
) -> Result<()> {
    let same = expected.rank() == found.len()
        && expected
            .0
            .iter()
            .zip(found)
            .all(|(d, n)| d.eval(bindings).is_ok_and(|v| usize::try_from(v) == Ok(*n)));
    if same {
        return Ok(());
    }
    let unbound = expected.0.iter().find_map(|d| match d.eval(bindings) {
        Err(DimError::Unbound(s)) => Some(s),
        _ => None,
    });
    if let Some(s) = unbound {
        let what = format!("{what} of shape {expected}: symbol {s} has no value");
        return Err(Error::other(Stage::Run, what).of_kind(ErrorKind::MissingInput));
    }
    let at = at(&values_of(&expected.0, &[bindings]));
    Err(mismatch(format!(
        "{what}: expected shape {expected}{at}, found {found:?}"
    )))
}

/// The name, the declared shape and the sizes of an input.
pub type Sized<'a> = (&'a str, &'a Shape, &'a [usize]);

/// Solves for the symbols in these shapes, given input names and sizes. The error names the input
/// whose sizes contradict the model or another input, with both sides.
pub fn solve<'a>(inputs: impl Iterator<Item = Sized<'a>>) -> Result<Bindings> {
    let inputs: Vec<_> = inputs.collect();
    for (name, shape, found) in &inputs {
        if shape.rank() != found.len() {
            let what = format!("input \"{name}\": expected shape {shape}, found {found:?}");
            return Err(mismatch(what));
        }
    }
    let bindings = values(&inputs);
    for (name, shape, found) in &inputs {
        check_shape(&format_args!("input \"{name}\""), shape, found, &bindings)?;
    }
    Ok(bindings)
}

/// The values of the symbols in these shapes, as far as the sizes determine them. If sizes
/// contradict each other, the first one counts.
pub fn values(inputs: &[Sized<'_>]) -> Bindings {
    let mut bindings = Bindings::new();
    let sizes = || {
        let sizes = inputs
            .iter()
            .flat_map(|(_, shape, found)| shape.0.iter().zip(*found));
        sizes.map(|(dim, n)| (dim, num::signed(*n)))
    };
    // Plain symbols first, then repeatedly expressions that are linear in their one unknown.
    for (dim, size) in sizes() {
        if let Some(symbol) = dim.as_symbol().filter(|s| bindings.get(s).is_none()) {
            bindings.set(symbol, size);
        }
    }
    loop {
        let mut found = false;
        for (dim, size) in sizes() {
            let mut symbols = BTreeSet::new();
            dim.symbols(&mut symbols);
            symbols.retain(|s| bindings.get(s).is_none());
            if let (Some(symbol), 1) = (symbols.first(), symbols.len())
                && let Some(v) = linear(dim, symbol, size, &bindings)
            {
                bindings.set(symbol, v);
                found = true;
            }
        }
        if !found {
            return bindings;
        }
    }
}

/// The value of `symbol` for which `dim` equals `size`, if `dim` is linear in it.
fn linear(dim: &Dim, symbol: &Symbol, size: i64, bindings: &Bindings) -> Option<i64> {
    let at = |v: i64| {
        let mut b = bindings.clone();
        b.set(symbol, v);
        dim.eval(&b).ok()
    };
    let zero = at(0)?;
    let (rise, slope) = (size.checked_sub(zero)?, at(1)?.checked_sub(zero)?);
    let v = rise
        .checked_div(slope)
        .filter(|v| v.checked_mul(slope) == Some(rise))?;
    // An expression that is not linear differs from this line at a further point.
    let further = at(v.checked_add(1)?)?.checked_sub(slope)?;
    (at(v)? == size && further == size).then_some(v)
}
