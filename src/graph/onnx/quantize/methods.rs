//! What chooses how each weight is quantized, and what it may know of the model.

use super::super::dtype_of;
use super::super::weights::Weights;
use super::panels::sample;
use super::parts::Parts;
use super::plan::{Facts, Plan, Weight};
use super::source::Source;
use crate::error::{Error, Result, Stage};
use crate::quant::{Bits, ByGroup, ColumnMethod, Hessian, Integers, Method};
use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

/// What a weight is multiplied by before it is quantized. The model stays the same where what makes its inputs and what reads its results
/// is changed accordingly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling<'a> {
    /// Factors of the K rows.
    pub rows: Option<&'a [f32]>,
    /// Divisors of the N columns.
    pub columns: Option<&'a [f32]>,
}

/// Chooses a method for each weight. A [`Method`] is that of all weights; what knows of the inputs of a weight knows better.
pub trait Methods: Sync {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// Looks at what is planned. Called once, after the output was found to be free and before any weight is made.
    fn prepare(&mut self, planned: &Planned<'_>) -> Result<()> {
        let _ = planned;
        Ok(())
    }

    /// The method for the weight of this name with K rows. An error where what it needs is not there.
    fn of<'a>(&'a self, weight: &str, k: usize) -> Result<Box<dyn ColumnMethod + 'a>>;

    /// The Hessian of what the weight of this name is multiplied by, where it is known: formats are compared by what a product's results lose, and else by
    /// what its weights lose. Asked for in the order of the initialisers.
    fn hessian(&self, weight: &str) -> Result<Option<Arc<Hessian>>> {
        let _ = weight;
        Ok(None)
    }

    /// How the weight of this name is scaled before its method sees it.
    fn scaling(&self, weight: &str) -> Scaling<'_> {
        let _ = weight;
        Scaling::default()
    }

    /// What the elements of the initialiser of this name, which is not quantized, are divided by, one each.
    fn divisor(&self, initializer: &str) -> Option<&[f32]> {
        let _ = initializer;
        None
    }

    /// Names of what [`Methods::scaling`] and [`Methods::divisor`] change. Changes belong together: if one of these cannot be changed, the run ends with an error.
    fn changed(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Names the method and all that its results depend on, as a run that goes on must use the same.
    fn key(&self, weight: &str) -> String;
}

impl Methods for Method {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn of<'a>(&'a self, _weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'a>> {
        Ok(Box::new(ByGroup::from(*self)))
    }

    fn key(&self, _weight: &str) -> String {
        Self::name(*self).to_owned()
    }
}

impl Methods for Integers {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn of<'a>(&'a self, _weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'a>> {
        Ok(Box::new(*self))
    }

    fn key(&self, _weight: &str) -> String {
        Self::NAME.to_owned()
    }
}

/// What is going to be done to a model, as [`Methods`] see it.
pub struct Planned<'a> {
    source: &'a Source,
    plan: &'a Plan,
    parts: &'a Parts,
    facts: Facts<'a>,
    weights: RefCell<Weights>,
    model: OnceCell<String>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(source: &'a Source, plan: &'a Plan, parts: &'a Parts) -> Self {
        Self {
            source,
            plan,
            parts,
            facts: Facts::new(&source.graph),
            weights: RefCell::new(Weights::new(&source.path)),
            model: OnceCell::new(),
        }
    }

    fn weight(&self, name: &str) -> Option<&'a Weight> {
        let of = |w: &&Weight| self.source.graph.initializer[w.initializer].name == name;
        self.plan.weights.iter().find(of)
    }

    /// Format and group size of the weight of this name, under a budget those that it may get at most; `None` where it is not quantized.
    pub fn format(&self, weight: &str) -> Option<(Bits, usize)> {
        self.weight(weight).map(|w| (w.bits, w.group))
    }

    /// True for an initialiser of floats that stays what it is, and that nothing but nodes of the graph reads: it may be divided.
    pub fn is_free(&self, initializer: &str) -> bool {
        let t = self.facts.constants.get(initializer);
        let t = t.and_then(|i| self.source.graph.initializer.get(*i));
        let float = t.and_then(|t| dtype_of(i64::from(t.data_type)).ok());
        float.is_some_and(|d| d.is_float() && !d.is_mini())
            && !self.facts.outside.contains(initializer)
            && self.weight(initializer).is_none()
    }

    /// Some columns, `most` at most, of the weight of this name, evenly spread, one after the other; none where it is not quantized.
    pub fn sample(&self, weight: &str, most: usize) -> Result<Vec<f32>> {
        let Some(w) = self.weight(weight) else {
            return Ok(Vec::new());
        };
        let tensor = self
            .weights
            .borrow_mut()
            .tensor(&self.source.graph.initializer[w.initializer])?;
        Ok(sample(self.source.elements(weight, &tensor)?, w, most))
    }

    /// Names the model by the checksum of its files.
    pub fn model(&self) -> Result<String> {
        if let Some(known) = self.model.get() {
            return Ok(known.clone());
        }
        let name = format!("model {:08x}", self.source.checksum()?);
        Ok(self.model.get_or_init(|| name).clone())
    }

    /// What was [kept](Self::remember) under this name with this key.
    pub fn recall(&self, name: &str, key: &str) -> Option<Vec<Vec<f32>>> {
        self.parts.recall(name, key)
    }

    /// What was kept under this name with this key, or else what `make` makes, which is kept so that a run that goes on need not. The key says
    /// what it was made from.
    pub fn remember(
        &self,
        name: &str,
        key: &str,
        make: impl FnOnce() -> Result<Vec<Vec<f32>>>,
    ) -> Result<Vec<Vec<f32>>> {
        if let Some(known) = self.recall(name, key) {
            return Ok(known);
        }
        let made = make()?;
        self.parts.remember(name, key, &made)?;
        Ok(made)
    }

    /// An error where something that `methods` change is not there to be changed: the model would be another.
    pub(super) fn check(&self, methods: &dyn Methods) -> Result<()> {
        let stays = |name: &&str| {
            let Scaling { rows, columns } = methods.scaling(name);
            match self.weight(name) {
                Some(w) => rows.is_some_and(|r| r.len() != w.k) || columns.is_some_and(|c| c.len() != w.n),
                None => rows.is_some() || columns.is_some() || !self.is_free(name),
            }
        };
        match methods.changed().into_iter().find(stays) {
            None => Ok(()),
            Some(name) => {
                let what = format!(
                    "method {}: \"{name}\" was to be scaled, and cannot be",
                    methods.name()
                );
                Err(Error::file(Stage::Quantize, &self.source.path, what))
            }
        }
    }
}
