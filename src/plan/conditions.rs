//! Conditions that the symbols of a run must meet.

use super::compile::Compiler;
use super::{Condition, dim_error};
use crate::error::{Error, Result, Stage};
use crate::graph::State;
use crate::shape::{Bindings, Constraints, Dim, Symbol};
use std::collections::{BTreeSet, HashSet};

impl Compiler<'_> {
    /// Assumptions of shape inference and operators, the capacity of every state, and the
    /// constraints of the model; without those that every run meets or that cannot be checked.
    pub fn conditions(&self) -> Result<Vec<Condition>> {
        let mut all = Vec::new();
        for a in self.graph.assumptions() {
            let name = self.graph.node(a.node).map_or("", |n| n.name.as_str());
            let meaning = format!("node \"{name}\": {}", a.assumed.meaning);
            all.push(self.condition(&a.assumed.dim, a.assumed.equal, meaning)?);
        }
        all.extend(self.collected.conditions.iter().cloned());
        for s in self.graph.states() {
            self.capacity(s, &mut all)?;
        }
        // Every run is within the bounds, and meets the constraints, since they are conditions too.
        let within = self.bounded(Constraints::new(), &self.options.bounds)?;
        let with = self.bounded(self.graph.constraints().clone(), &self.options.bounds)?;
        all.retain(|c| !always_holds(c, &with));
        for (left, right, equal, text) in self.graph.constraints().relations() {
            let dim = right.sub(&left).map_err(|e| dim_error(&e))?;
            let c = self.condition(&dim, equal, format!("the constraint {text} is violated"))?;
            if !always_holds(&c, &within) {
                all.push(c);
            }
        }
        let mut seen = HashSet::new();
        all.retain(|c| seen.insert((c.dim.clone(), c.equal)));
        all.retain(|c| self.can_be_checked(c));
        Ok(all)
    }

    fn condition(&self, given: &Dim, equal: bool, meaning: String) -> Result<Condition> {
        let dim = given.substitute(&self.options.fixed).map_err(|e| dim_error(&e))?;
        Ok(Condition {
            dim,
            given: given.clone(),
            equal,
            meaning,
        })
    }

    /// Adds the conditions that a state has room for its rows.
    fn capacity(&self, s: &State, all: &mut Vec<Condition>) -> Result<()> {
        let size = |v| self.fact(v).and_then(|f| f.shape.0.get(s.axis).cloned());
        let (Some(rows), Some(past)) = (size(s.output), size(s.input)) else {
            return Ok(());
        };
        let kept = self.options.rows(s);
        if let Some(window) = s.window.filter(|_| kept < self.options.state_rows) {
            // The window of the first new row must not be overwritten by the last new row.
            let new = rows.sub(&past).map_err(|e| dim_error(&e))?;
            let room = Dim::from(kept - window + 1)
                .sub(&new)
                .map_err(|e| dim_error(&e))?;
            let meaning = "the new rows exceed the capacity of a state that keeps a window";
            all.push(self.condition(&room, false, meaning.to_owned())?);
        }
        let room = Dim::from(self.options.state_rows)
            .sub(&rows)
            .map_err(|e| dim_error(&e))?;
        let meaning = "the rows exceed the capacity of the states";
        all.push(self.condition(&room, false, meaning.to_owned())?);
        Ok(())
    }

    /// A declared constraint on a symbol that neither a needed shape nor an assumption contains
    /// cannot be checked, and need not be.
    fn can_be_checked(&self, c: &Condition) -> bool {
        let known = |s: &Symbol| {
            self.options.bounds.get(s).is_some() || self.open.contains(s) || self.made.find(s).is_some()
        };
        let mut symbols = BTreeSet::new();
        c.dim.symbols(&mut symbols);
        symbols.iter().all(known)
    }

    /// `known`, extended by the largest values of symbols.
    pub fn bounded(&self, mut known: Constraints, most: &Bindings) -> Result<Constraints> {
        for (s, v) in most.iter() {
            let added = known.bound(s, None, Some(v));
            added.map_err(|e| Error::other(Stage::Plan, e.to_string()))?;
        }
        Ok(known)
    }
}

fn always_holds(c: &Condition, known: &Constraints) -> bool {
    let always = if c.equal {
        known.equal(&c.dim, &0.into())
    } else {
        known.at_least(&c.dim, 0)
    };
    always == Some(true)
}
