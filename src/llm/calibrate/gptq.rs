//! `gptq`: error compensation with the second moments of a calibration.

use super::{Calibration, Input, batch};
use crate::error::{Error, Result, Stage};
use crate::graph::onnx::quantize::Methods;
use crate::graph::products::Products;
use crate::quant::gptq::{DAMPING, Factor, Gptq};
use crate::quant::{ByGroup, ColumnMethod, Method, Moments, MomentsError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// [`Gptq`] for the weights of matrix products; tables, and weights that anything else reads, are rounded as they are.
pub struct Compensate<'a> {
    calibration: &'a Calibration<'a>,
    products: &'a Products<'a>,
    method: Method,
    factors: Mutex<HashMap<Vec<String>, Arc<Factor>>>,
}

impl<'a> Compensate<'a> {
    /// For the model that `calibration` opens and whose graph `products` are of; groups are fitted by `method`.
    pub fn new(calibration: &'a Calibration<'a>, products: &'a Products<'a>, method: Method) -> Self {
        Self {
            calibration,
            products,
            method,
            factors: Mutex::default(),
        }
    }

    /// What the products of a weight read.
    fn inputs(&self, weight: &str) -> Vec<String> {
        let mut inputs: Vec<String> = self.products.of_weight(weight).map(|p| p.input.clone()).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// The factor for what the products of `weight` read. Those of the weights after it come with it, as many as the
    /// memory is for.
    fn factor(&self, weight: &str) -> Result<Option<Arc<Factor>>> {
        let wanted = self.inputs(weight);
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut factors = self.factors.lock().unwrap_or_else(PoisonError::into_inner);
        if !factors.contains_key(&wanted) {
            *factors = self.following(weight)?;
        }
        Ok(factors.get(&wanted).cloned())
    }

    fn following(&self, weight: &str) -> Result<HashMap<Vec<String>, Arc<Factor>>> {
        let all = self.products.all();
        let from = all.iter().position(|p| p.weight == weight).unwrap_or(0);
        let mut inputs: Vec<Input> = Vec::new();
        for p in self
            .products
            .of_weight(weight)
            .chain(all.get(from..).unwrap_or_default())
        {
            if !inputs.iter().any(|(name, _)| *name == p.input) {
                inputs.push((p.input.clone(), p.k));
            }
        }
        // The weight's own products come first; all of them are needed.
        let own = self.inputs(weight).len();
        let inputs = inputs.get(..batch(&inputs).len().max(own)).unwrap_or(&inputs);
        let found = self.calibration.moments(inputs)?;
        let names = inputs.iter().map(|(name, _)| name.clone());
        let mut moments: HashMap<String, Moments> = names.zip(found).collect();

        let mut keys: Vec<Vec<String>> = all.iter().map(|p| self.inputs(&p.weight)).collect();
        keys.retain(|key| key.iter().all(|name| moments.contains_key(name)));
        keys.sort_unstable();
        keys.dedup();
        let shared = keys.iter().any(|key| key.len() > 1);
        let mut factors = HashMap::new();
        for key in keys {
            let of = |e: MomentsError| {
                Error::other(Stage::Quantize, format!("value \"{}\": {e}", key.join("\", \"")))
            };
            let factor = match key.as_slice() {
                // Moments that nothing else needs go as soon as they are factored.
                [name] if !shared => moments
                    .remove(name)
                    .map(|m| Factor::new(&m, DAMPING))
                    .transpose()
                    .map_err(of)?,
                names => {
                    let mut sum: Option<Moments> = None;
                    for m in names.iter().filter_map(|name| moments.get(name)) {
                        match &mut sum {
                            None => sum = Some(m.clone()),
                            Some(sum) => sum.merge(m).map_err(of)?,
                        }
                    }
                    sum.map(|m| Factor::new(&m, DAMPING)).transpose().map_err(of)?
                }
            };
            factors.extend(factor.map(|f| (key, Arc::new(f))));
        }
        Ok(factors)
    }
}

impl Methods for Compensate<'_> {
    fn of<'b>(&'b self, weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'b>> {
        Ok(match self.factor(weight)? {
            Some(factor) => Box::new(Gptq {
                factor,
                method: self.method,
            }),
            None => Box::new(ByGroup::from(self.method)),
        })
    }

    fn key(&self, weight: &str) -> String {
        match self.inputs(weight).is_empty() {
            true => self.method.name().to_owned(),
            false => format!("gptq of {}, {}", self.method.name(), self.calibration.key()),
        }
    }
}
