//! [`Methods`] choose how each weight is quantized; [`Planned`] is what they know of the model.

use super::nodes::Facts;
use super::parts::Parts;
use super::plan::Plan;
use super::source::Source;
use super::weight::{Scaling, Weight, sample};
use std::cell::{OnceCell, RefCell};
use std::sync::Arc;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::graph::onnx::dtype_of;
use transformer_lite::unstable::graph::onnx::weights::Weights;
use transformer_lite::unstable::quant::{Bits, ByGroup, ColumnMethod, Hessian, Integers, Method, Packed};

/// Chooses a method for each weight. A plain [`Method`] applies to all weights; calibrated methods
/// use the inputs of each weight.
pub trait Methods: Sync {
    fn name(&self) -> &'static str;

    /// Examines the plan. Called once, after the output was found to be free and before any weight
    /// is quantized.
    fn prepare(&mut self, planned: &Planned<'_>) -> Result<()> {
        let _ = planned;
        Ok(())
    }

    /// The method for the weight with this name and K rows. Fails if data that it needs is missing.
    fn of<'a>(&'a self, weight: &str, k: usize) -> Result<Box<dyn ColumnMethod + 'a>>;

    /// The Hessian of the inputs of this weight, if known. Formats are then compared by the error
    /// of the matmul's results, otherwise by the error of the weights. Called in the order of the
    /// initializers.
    fn hessian(&self, weight: &str) -> Result<Option<Arc<Hessian>>> {
        let _ = weight;
        Ok(None)
    }

    /// Scaling of this weight before its method sees it.
    fn scaling(&self, weight: &str) -> Scaling<'_> {
        let _ = weight;
        Scaling::default()
    }

    /// The finished matrix of this weight of `k` x `n`, if it was quantized elsewhere;
    /// [`Methods::of`] is then not asked.
    fn packed(&self, weight: &str) -> Result<Option<Packed>> {
        let _ = weight;
        Ok(None)
    }

    /// Divisors of the elements of this initializer, which is not quantized.
    fn divisor(&self, initializer: &str) -> Option<&[f32]> {
        let _ = initializer;
        None
    }

    /// Names of the initializers changed by [`Methods::scaling`] and [`Methods::divisor`]. The
    /// changes belong together: if one is impossible, the run fails.
    fn changed(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Identifies the method and everything its results depend on. A resumed run must have the same
    /// key.
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

/// The planned quantization of a model, as seen by [`Methods`].
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

    /// Format and group size of this weight; with a budget, the largest that it can get. `None` if
    /// it is not quantized.
    pub fn format(&self, weight: &str) -> Option<(Bits, usize)> {
        self.weight(weight).map(|w| (w.bits, w.group))
    }

    /// True for a float initializer that stays unchanged and is read only by nodes of the graph: it
    /// may be divided.
    pub fn is_free(&self, initializer: &str) -> bool {
        let t = self.facts.constants.get(initializer);
        let t = t.and_then(|i| self.source.graph.initializer.get(*i));
        let float = t.and_then(|t| dtype_of(i64::from(t.data_type)).ok());
        float.is_some_and(|d| d.is_float() && !d.is_mini())
            && !self.facts.outside.contains(initializer)
            && self.weight(initializer).is_none()
    }

    /// At most `most` evenly spread columns of this weight, one after the other; empty if it is not
    /// quantized.
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

    /// Identifies the model by the checksum of its files.
    pub fn model(&self) -> Result<String> {
        if let Some(known) = self.model.get() {
            return Ok(known.clone());
        }
        let name = format!("model {:08x}", self.source.checksum()?);
        Ok(self.model.get_or_init(|| name).clone())
    }

    /// Numbers [stored](Self::remember) under this name with this key.
    pub fn recall(&self, name: &str, key: &str) -> Option<Vec<Vec<f32>>> {
        self.parts.recall(name, key)
    }

    /// Returns the numbers stored under this name with this key, or else makes and stores them for
    /// a resumed run. The key identifies what they were made from.
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

    /// Fails if something that `methods` change cannot be changed, since the model would then not
    /// be equivalent.
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
                    "method {} must scale \"{name}\", which cannot be scaled",
                    methods.name()
                );
                Err(Error::file(Stage::Quantize, &self.source.path, what))
            }
        }
    }
}
