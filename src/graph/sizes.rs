//! Finds and checks values of the symbols with which a graph can run.

use super::{Graph, NodeAssumption, Value};
use crate::shape::{Bindings, Dim, Symbol};
use std::collections::{BTreeSet, HashSet};

/// Sizes that [`Rules::smallest`] tries, in this order.
const TRIED: [i64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 224, 320];
/// Number of expressions that it evaluates before it gives up.
const MAX_TRIES: usize = 200_000;
/// Number of symbols beyond which it finds nothing.
const MAX_SYMBOLS: usize = 256;

/// An expression that must not be negative in a run, and its origin.
struct Rule<'a> {
    dim: &'a Dim,
    equal: bool,
    of: Of<'a>,
}

enum Of<'a> {
    Size(&'a Value),
    Assumed(&'a NodeAssumption),
}

/// Sizes of all values, then the assumptions of the shapes.
fn rules(graph: &Graph) -> impl Iterator<Item = Rule<'_>> {
    let sizes = graph.values.iter().flat_map(|value| {
        let dims = value.fact.iter().flat_map(|f| &f.shape.0);
        dims.filter(|d| d.as_const().is_none()).map(move |dim| Rule {
            dim,
            equal: false,
            of: Of::Size(value),
        })
    });
    sizes.chain(graph.assumptions().iter().map(|a| Rule {
        dim: &a.assumed.dim,
        equal: a.assumed.equal,
        of: Of::Assumed(a),
    }))
}

/// `name=1, other=2`.
fn text_of(b: &Bindings) -> String {
    let all: Vec<String> = b.iter().map(|(s, v)| format!("{s}={v}")).collect();
    all.join(", ")
}

/// Checks values of some or all symbols of `graph`, whose facts must be derived. No size may be
/// negative, and the assumptions of the shapes must hold where these values decide them. The error
/// names the value or node, the expression and the values.
pub fn check(graph: &Graph, given: &Bindings) -> Result<(), String> {
    let with = || text_of(given);
    for rule in rules(graph) {
        let dim = rule.dim;
        let n = match (dim.substitute(given), &rule.of) {
            (Ok(n), _) => n.as_const(),
            (Err(e), Of::Size(v)) => {
                let shape = v.fact.as_ref().map(|f| f.shape.to_string()).unwrap_or_default();
                return Err(format!(
                    "\"{}\" of shape {shape} has the size {dim}, which cannot be computed ({e}) with {}",
                    v.name,
                    with()
                ));
            }
            (Err(_), Of::Assumed(_)) => None,
        };
        let Some(n) = n.filter(|n| *n < 0 || rule.equal && *n != 0) else {
            continue;
        };
        return Err(match rule.of {
            Of::Size(v) => {
                let shape = v.fact.as_ref().map(|f| f.shape.to_string()).unwrap_or_default();
                format!(
                    "\"{}\" of shape {shape} has the size {dim}, which is negative ({n}) with {}",
                    v.name,
                    with()
                )
            }
            Of::Assumed(a) => {
                let node = graph.node(a.node).map_or("", |n| n.name.as_str());
                let what = if rule.equal { "0" } else { "0 or more" };
                let meaning = &a.assumed.meaning;
                format!(
                    "node \"{node}\": {meaning}: {dim} is {n}, expected {what}, with {}",
                    with()
                )
            }
        });
    }
    Ok(())
}

/// Conditions of a run, used to find symbol values that satisfy them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Sizes, which should preferably not be 0.
    sizes: HashSet<Dim>,
    /// Expressions that must not be negative, or must be 0 if the flag is set.
    conditions: HashSet<(Dim, bool)>,
}

impl Rules {
    /// Sizes, constraints and assumptions of `graph`, whose facts must be derived.
    pub fn of(graph: &Graph) -> Self {
        let mut all = Self::default();
        for rule in rules(graph) {
            match rule.of {
                Of::Size(_) => {
                    all.sizes.insert(rule.dim.clone());
                }
                Of::Assumed(_) => all.add(rule.dim, rule.equal),
            }
        }
        for (left, right, equal, _) in graph.constraints().relations() {
            if let Ok(rest) = right.sub(&left) {
                all.add(&rest, equal);
            }
        }
        all
    }

    /// Adds a condition: `dim` must not be negative, or must be 0 if `equal`.
    pub fn add(&mut self, dim: &Dim, equal: bool) {
        self.conditions.insert((dim.clone(), equal));
    }

    /// Small values of the symbols `open` that satisfy all rules together with `fixed`; sizes of 0
    /// are avoided if possible. `None` if none are found: only the sizes 1, 2, 4, ... up to 320 are
    /// tried, and only for up to 256 symbols. Rules with other symbols are ignored.
    pub fn smallest(&self, open: &BTreeSet<Symbol>, fixed: &Bindings) -> Option<Bindings> {
        if open.len() > MAX_SYMBOLS {
            return None;
        }
        [1, 0]
            .into_iter()
            .find_map(|least| self.search(open, fixed, least))
    }

    fn search(&self, open: &BTreeSet<Symbol>, fixed: &Bindings, least: i64) -> Option<Bindings> {
        // Each rule is checked as soon as its last symbol has a value.
        let mut levels: Vec<Vec<(&Dim, i64, bool)>> = vec![Vec::new(); open.len()];
        let sizes = self.sizes.iter().map(|d| (d, least, false));
        let conditions = self.conditions.iter().map(|(d, equal)| (d, 0, *equal));
        for rule in sizes.chain(conditions) {
            let mut symbols = BTreeSet::new();
            rule.0.symbols(&mut symbols);
            symbols.retain(|s| fixed.get(s).is_none());
            if !symbols.is_subset(open) {
                continue;
            }
            match open.iter().rposition(|s| symbols.contains(s)) {
                Some(at) => levels.get_mut(at)?.push(rule),
                None if holds(rule, fixed) => {}
                None => return None,
            }
        }
        let symbols: Vec<&Symbol> = open.iter().collect();
        let mut found = fixed.clone();
        let mut tries = 0;
        place(&symbols, &levels, &mut found, &mut tries).then_some(found)
    }
}

fn holds((dim, least, equal): (&Dim, i64, bool), at: &Bindings) -> bool {
    dim.eval(at)
        .is_ok_and(|v| if equal { v == 0 } else { v >= least })
}

/// Gives the first of `symbols` a value that satisfies its rules and leaves values for the others.
fn place(
    symbols: &[&Symbol],
    levels: &[Vec<(&Dim, i64, bool)>],
    found: &mut Bindings,
    tries: &mut usize,
) -> bool {
    let (Some((symbol, symbols)), Some((rules, levels))) = (symbols.split_first(), levels.split_first())
    else {
        return true;
    };
    for size in TRIED {
        if *tries > MAX_TRIES {
            return false;
        }
        *tries += rules.len() + 1;
        found.set(symbol, size);
        if rules.iter().all(|r| holds(*r, found)) && place(symbols, levels, found, tries) {
            return true;
        }
    }
    found.remove(symbol);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(sizes: &[&str], conditions: &[(&str, bool)]) -> Rules {
        let dim = |text: &str| Dim::parse(text).unwrap();
        Rules {
            sizes: sizes.iter().map(|t| dim(t)).collect(),
            conditions: conditions.iter().map(|(t, equal)| (dim(t), *equal)).collect(),
        }
    }

    fn smallest(rules: &Rules, open: &[&str], fixed: &[(&str, i64)]) -> Option<String> {
        let mut given = Bindings::new();
        for (name, v) in fixed {
            given.set(&Symbol::new(name), *v);
        }
        let open = open.iter().map(|n| Symbol::new(n)).collect();
        rules.smallest(&open, &given).map(|b| text_of(&b))
    }

    #[test]
    fn sizes_grow_until_the_rules_hold() {
        let pyramid = ("floor((h + 15)/16) - 2*floor((h + 31)/32)", true);
        let r = rules(&["b", "h", "w - 20"], &[pyramid]);
        assert_eq!(
            smallest(&r, &["b", "h", "w"], &[]).as_deref(),
            Some("b=1, h=32, w=32")
        );
        assert_eq!(
            smallest(&r, &["b", "w"], &[("h", 64)]).as_deref(),
            Some("b=1, h=64, w=32")
        );
        assert_eq!(smallest(&r, &["b", "w"], &[("h", 33)]), None);
    }

    #[test]
    fn symbols_that_rules_tie_together_are_found_together() {
        let r = rules(
            &["a", "b", "total"],
            &[("total - a - b", true), ("b - 4*a", true)],
        );
        let found = smallest(&r, &["a", "b", "total"], &[]);
        assert_eq!(found, None, "no multiple of 5 that is tried is the sum");
        let r = rules(&["a", "b", "total"], &[("total - a - b", true)]);
        assert_eq!(
            smallest(&r, &["a", "b", "total"], &[]).as_deref(),
            Some("a=1, b=1, total=2")
        );
    }

    #[test]
    fn nothing_is_found_for_very_many_symbols() {
        let names: Vec<String> = (0..100_000).map(|i| format!("s{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let r = rules(&names, &[]);
        assert_eq!(smallest(&r, &names, &[]), None);
        assert!(smallest(&r, &names[..100], &[]).is_some());
    }

    #[test]
    fn empty_sizes_are_avoided_unless_all_are() {
        let r = rules(&["n", "floor(n/8)"], &[]);
        assert_eq!(smallest(&r, &["n"], &[]).as_deref(), Some("n=8"));
        let r = rules(&["n", "floor(n/999)"], &[]);
        assert_eq!(smallest(&r, &["n"], &[]).as_deref(), Some("n=1"));
        let r = rules(&["n", "data + n"], &[("data - 5", true)]);
        assert_eq!(
            smallest(&r, &["n"], &[]).as_deref(),
            Some("n=1"),
            "data is not known before the run"
        );
    }
}
