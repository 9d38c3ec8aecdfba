//! The symbols of a model: where they come from, their bounds, and default bounds.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::graph::{Graph, MadeSymbol, TensorScalar, sizes};
use transformer_lite::unstable::plan::{self, Options, Plan};
use transformer_lite::unstable::shape::{Bindings, Constraints, Dim, Symbol};

const BIND: &str = "--bind";
const BOUNDS: &str = "--bounds";

/// What sets the largest value of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BoundFrom {
    /// `--bind`, as its only value.
    Bind,
    /// `--bounds`, directly or through an equation.
    Bounds,
    /// The context length of a decoder.
    Context,
    /// The length of a decoder's prefill run.
    Chunk,
    /// Decoders run one sequence at a time.
    OneSequence,
    /// A default.
    Assumed,
    /// The operator that computes it at run time, if it has a limit.
    Data,
}

/// A symbol.
#[derive(Clone, Debug, Serialize, schemars::JsonSchema)]
pub struct SymbolReport {
    /// Its name.
    pub name: String,
    /// Smallest value.
    pub lower: i64,
    /// Largest value, for which memory is planned.
    pub upper: Option<i64>,
    /// What sets `upper`.
    pub bound_from: BoundFrom,
    /// Where its value in a run comes from.
    pub source: String,
}

/// Parses the values of an option `--bind`: comma-separated pairs such as `N=512,past=1024`. Usage
/// errors: a name is not a C identifier, a value is not a non-negative integer, a name has two
/// values.
pub fn parse_bind<T: AsRef<str>>(texts: &[T]) -> Result<Bindings> {
    let mut out = Bindings::new();
    for part in texts.iter().flat_map(|t| t.as_ref().split(',')).map(str::trim) {
        let bad = |what: String| Error::usage(BIND, what);
        let (name, value) = part.split_once('=').ok_or_else(|| {
            bad(format!(
                "\"{part}\": expected NAME=VALUE pairs, as in N=512,past=1024"
            ))
        })?;
        let symbol = Symbol::parse(name.trim()).map_err(|e| bad(format!("\"{part}\": {e}")))?;
        let number: i64 = value.trim().parse().map_err(|_| {
            bad(format!(
                "\"{part}\": {} is not an integer from 0 to {}",
                value.trim(),
                i64::MAX
            ))
        })?;
        if number < 0 {
            return Err(bad(format!("\"{part}\": a size cannot be negative")));
        }
        if let Some(other) = out.get(&symbol).filter(|o| *o != number) {
            return Err(bad(format!("{symbol} is given twice: {other} and {number}")));
        }
        out.set(&symbol, number);
    }
    Ok(out)
}

/// Parses the value of an option `--bounds`; see [`Constraints::parse`]. Usage errors: the text is
/// not a constraint, or constraints contradict each other.
pub fn parse_bounds(text: &str) -> Result<Constraints> {
    Constraints::parse(text).map_err(|e| Error::usage(BOUNDS, e.to_string()))
}

/// The symbols of one model, with given bounds and values.
pub(super) struct Symbols {
    constraints: Constraints,
    /// Given values, and values that follow from equations.
    fixed: Bindings,
    /// The source of each symbol of the inputs, with its default bound.
    sources: BTreeMap<Symbol, (String, i64)>,
    made: Vec<MadeSymbol>,
    bounds: BTreeMap<Symbol, (i64, BoundFrom)>,
}

/// `name=1, other=2`.
fn text_of(b: &Bindings) -> String {
    let all: Vec<String> = b.iter().map(|(s, v)| format!("{s}={v}")).collect();
    all.join(", ")
}

impl Symbols {
    /// The symbols of `graph`, with derived facts. Usage errors: an unknown symbol; a value that
    /// contradicts `constraints`.
    pub fn new(graph: &Graph, constraints: &Constraints, bind: &Bindings) -> Result<Self> {
        let mut sources: BTreeMap<Symbol, (String, i64)> = BTreeMap::new();
        for v in graph.inputs() {
            let (name, fact) = (&graph.value(*v).name, graph.fact(*v)?);
            let rank = fact.shape.rank();
            for (axis, dim) in fact.shape.0.iter().enumerate() {
                let usual = match (rank, axis) {
                    (_, 0) if rank > 1 => 1,
                    (4, 2 | 3) => 640,
                    _ => 512,
                };
                match dim.as_symbol() {
                    // A symbol that stands alone says more than one inside an expression.
                    Some(s) if sources.get(s).is_none_or(|(text, _)| text.starts_with("within")) => {
                        let text = format!("size of input \"{name}\" along axis {axis}");
                        sources.insert(s.clone(), (text, usual));
                    }
                    Some(_) => {}
                    None => {
                        let mut all = BTreeSet::new();
                        dim.symbols(&mut all);
                        for s in all {
                            let text = format!("within size {dim} of input \"{name}\" along axis {axis}");
                            sources.entry(s).or_insert((text, usual));
                        }
                    }
                }
            }
        }
        let made: HashSet<&Symbol> = graph.made().iter().map(|m| &m.symbol).collect();
        let known = |s: &Symbol| sources.contains_key(s) || made.contains(s);
        let names = || {
            let all = sources.keys().chain(made.iter().copied());
            let all: BTreeSet<&str> = all.map(Symbol::name).collect();
            if all.is_empty() {
                return "it has none".to_owned();
            }
            format!(
                "its symbols are {}",
                all.into_iter().collect::<Vec<_>>().join(", ")
            )
        };
        let unknown = |option: &str, symbol: &Symbol| {
            let what = format!("the model has no symbol {symbol}; {}", names());
            Err(Error::usage(option, what))
        };
        if let Some((s, _)) = bind.iter().find(|(s, _)| !known(s)) {
            return unknown(BIND, s);
        }
        if let Some(s) = constraints.symbols().iter().find(|s| !known(s)) {
            return unknown(BOUNDS, s);
        }
        let wrong = |e: transformer_lite::unstable::shape::ConstraintError| {
            Error::usage(BIND, format!("{e} ({})", text_of(bind)))
        };
        let fixed = constraints.complete(bind).map_err(wrong)?;
        constraints.check(&fixed).map_err(wrong)?;
        let mut bounds = BTreeMap::new();
        for s in sources.keys() {
            if let Some(v) = fixed.get(s) {
                bounds.insert(s.clone(), (v, BoundFrom::Bind));
            } else if let (_, Some(v)) = constraints.range(&s.into()) {
                bounds.insert(s.clone(), (v, BoundFrom::Bounds));
            }
        }
        Ok(Self {
            constraints: constraints.clone(),
            fixed,
            sources,
            made: graph.made().to_vec(),
            bounds,
        })
    }

    /// Checks the given values: no size may be negative, and the conditions of the shapes must
    /// hold.
    pub fn check_values(&self, graph: &Graph) -> Result<()> {
        if self.fixed.iter().next().is_none() {
            return Ok(());
        }
        sizes::check(graph, &self.fixed).map_err(|what| Error::usage(BIND, what))
    }

    /// Checks that the conditions of `plan` can hold with the given values.
    pub fn check_conditions(&self, plan: &Plan) -> Result<()> {
        for c in plan.conditions() {
            if let Some(n) = c.dim.as_const().filter(|n| *n < 0 || c.equal && *n != 0) {
                let what = if c.equal { "0" } else { "0 or more" };
                let with = text_of(&self.fixed);
                return Err(Error::usage(
                    BIND,
                    format!("{}: {} is {n}, not {what}, with {with}", c.meaning, c.given),
                ));
            }
        }
        Ok(())
    }

    /// Checks that sizes in bytes at the largest values do not overflow.
    pub fn check_sizes(&self, graph: &Graph) -> Result<()> {
        let mut most = Bindings::new();
        let mut option = BOUNDS;
        for (s, (v, from)) in &self.bounds {
            most.set(s, *v);
            if *from == BoundFrom::Bind {
                option = BIND;
            }
        }
        for value in graph.values() {
            let Some(fact) = value.fact.as_ref().filter(|f| f.shape.as_fixed().is_none()) else {
                continue;
            };
            let bytes = fact
                .shape
                .count()
                .and_then(|c| c.mul(&8.into()))
                .and_then(|c| c.upper_bound(&most));
            match bytes {
                Ok(_) | Err(transformer_lite::unstable::shape::DimError::Unbound(_)) => {}
                Err(e) => {
                    return Err(Error::usage(
                        option,
                        format!(
                            "the bytes of \"{}\" of shape {} cannot be counted with up to {}: {e}",
                            value.name,
                            fact.shape,
                            text_of(&most)
                        ),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Sets the engine's limit for a symbol. A given bound may be smaller, not larger.
    pub fn decide(&mut self, symbol: &Symbol, most: i64, from: BoundFrom) -> Result<()> {
        let why = match from {
            BoundFrom::Context => "tokens that the cache has room for; see --context",
            BoundFrom::Chunk => "tokens of a prefill run; see --chunk",
            _ => "sequence that is run at a time",
        };
        match self.bounds.get(symbol) {
            Some((v, BoundFrom::Bind)) if *v > most => Err(Error::usage(
                BIND,
                format!("{symbol} = {v} exceeds {most}, the {why}"),
            )),
            Some((v, _)) if *v <= most => Ok(()),
            _ => {
                self.bounds.insert(symbol.clone(), (most, from));
                Ok(())
            }
        }
    }

    /// Sets a default bound for each unbounded symbol of `graph`: `length`, or one that suits the
    /// shape of the input.
    pub fn assume_rest(&mut self, graph: &Graph, length: Option<i64>) -> Result<()> {
        for s in plan::symbols(graph)? {
            if self.bounds.contains_key(&s) {
                continue;
            }
            let usual = self.sources.get(&s).map_or(512, |(_, v)| *v);
            let (lo, _) = self.constraints.range(&(&s).into());
            let most = length.unwrap_or(usual).max(lo.unwrap_or(0));
            self.bounds.insert(s, (most, BoundFrom::Assumed));
        }
        Ok(())
    }

    /// Adds bounds and values to the options of a plan. Values that the options fix stay: a decode
    /// plan always runs one token.
    pub fn apply(&self, options: &mut Options) {
        for (s, (most, from)) in &self.bounds {
            if options.fixed.get(s).is_some() || *from == BoundFrom::OneSequence {
                continue;
            }
            if *from == BoundFrom::Bind {
                options.fixed.set(s, *most);
                options.bounds.remove(s);
            } else {
                let most = options.bounds.get(s).map_or(*most, |b| b.min(*most));
                options.bounds.set(s, most);
            }
        }
    }

    /// The given equations and inequalities.
    pub fn relations(&self) -> Vec<String> {
        let equations = self.constraints.equations().map(|(a, b)| format!("{a} == {b}"));
        let others = self
            .constraints
            .inequalities()
            .map(|(a, b)| format!("{a} <= {b}"));
        equations.chain(others).collect()
    }

    /// All symbols: those of inputs by name, then those that a run computes and the plan needs.
    pub fn reports(&self, graph: &Graph, plan: Option<&Plan>) -> Vec<SymbolReport> {
        let lower = |s: &Symbol| {
            let fixed = self.fixed.get(s);
            fixed.unwrap_or_else(|| self.constraints.range(&s.into()).0.unwrap_or(0).max(0))
        };
        let mut out: Vec<SymbolReport> = Vec::new();
        for (s, (source, _)) in &self.sources {
            let bound = self.bounds.get(s);
            out.push(SymbolReport {
                name: s.to_string(),
                // One sequence is one, not none.
                lower: match bound {
                    Some((v, BoundFrom::OneSequence)) => *v,
                    _ => lower(s),
                },
                upper: bound.map(|(v, _)| *v),
                bound_from: bound.map_or(BoundFrom::Assumed, |(_, from)| *from),
                source: source.clone(),
            });
        }
        let most: Bindings = self.bounds.iter().fold(Bindings::new(), |mut b, (s, (v, _))| {
            b.set(s, *v);
            b
        });
        let needed: HashSet<&Symbol> = plan.iter().flat_map(|p| &p.made).collect();
        let all = if graph.made().is_empty() {
            &self.made
        } else {
            graph.made()
        };
        for m in all.iter().filter(|m| needed.contains(&m.symbol)) {
            let value = &graph.value(m.value).name;
            let limit = m.at_most.as_ref().and_then(|d: &Dim| d.upper_bound(&most).ok());
            out.push(SymbolReport {
                name: m.symbol.to_string(),
                lower: 0,
                upper: limit,
                bound_from: BoundFrom::Data,
                source: match m.scalar {
                    TensorScalar::Element(i) => format!("element {i} of \"{value}\", data of the run"),
                    TensorScalar::Size(axis) => {
                        format!("size of \"{value}\" along axis {axis}, which depends on the data of the run")
                    }
                },
            });
        }
        out
    }
}
