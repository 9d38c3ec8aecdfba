//! Computes values from Hessians, for as many inputs at a time as memory allows.

use super::products::Products;
use super::{Calibration, Input};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::quant::{Hessian, HessianError};

/// Computes the value from a Hessian.
type Make<T> = fn(Hessian) -> Result<T, HessianError>;

/// A value per Hessian, by its inputs. Weights are requested in the order of the matmuls; values
/// for the next weights are computed along with the requested one.
pub(super) struct ByHessian<'a, T> {
    calibration: &'a Calibration<'a>,
    products: &'a Products<'a>,
    make: Make<T>,
    held: Mutex<HashMap<Vec<String>, Arc<T>>>,
}

impl<'a, T> ByHessian<'a, T> {
    pub fn new(calibration: &'a Calibration<'a>, products: &'a Products<'a>, make: Make<T>) -> Self {
        let held = Mutex::default();
        Self {
            calibration,
            products,
            make,
            held,
        }
    }

    /// The inputs of a weight's matmuls; empty for a weight of no matmul.
    pub fn inputs(&self, weight: &str) -> Vec<String> {
        let mut inputs: Vec<String> = self.products.of_weight(weight).map(|p| p.input.clone()).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// The value for the inputs of `weight`; `None` for a weight of no matmul.
    pub fn of(&self, weight: &str) -> Result<Option<Arc<T>>> {
        let wanted = self.inputs(weight);
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.contains_key(&wanted) {
            // Free memory before computing the next values.
            held.clear();
            *held = self.following(weight)?;
        }
        Ok(held.get(&wanted).cloned())
    }

    fn following(&self, weight: &str) -> Result<HashMap<Vec<String>, Arc<T>>> {
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
        // The weight's own matmuls come first and are all needed.
        let own = self.inputs(weight).len();
        let inputs = inputs
            .get(..batch(&inputs, self.calibration.budget).len().max(own))
            .unwrap_or(&inputs);
        let found = self.calibration.hessians(inputs)?;
        let names = inputs.iter().map(|(name, _)| name.clone());
        let mut hessians: HashMap<String, Hessian> = names.zip(found).collect();

        let mut keys: Vec<Vec<String>> = all.iter().map(|p| self.inputs(&p.weight)).collect();
        keys.retain(|key| key.iter().all(|name| hessians.contains_key(name)));
        keys.sort_unstable();
        keys.dedup();
        let shared = keys.iter().any(|key| key.len() > 1);
        let mut made = HashMap::new();
        for key in keys {
            let of = |e: HessianError| {
                Error::other(Stage::Quantize, format!("value \"{}\": {e}", key.join("\", \"")))
            };
            let hessian = match key.as_slice() {
                // A Hessian with no other use is freed as soon as its value is computed.
                [name] if !shared => hessians.remove(name),
                names => {
                    let mut sum: Option<Hessian> = None;
                    for h in names.iter().filter_map(|name| hessians.get(name)) {
                        match &mut sum {
                            None => sum = Some(h.clone()),
                            Some(sum) => sum.merge(h).map_err(of)?,
                        }
                    }
                    sum
                }
            };
            let found = hessian.map(|h| (self.make)(h)).transpose().map_err(of)?;
            made.extend(found.map(|f| (key, Arc::new(f))));
        }
        Ok(made)
    }
}

/// The longest prefix of `inputs` within `budget` bytes, at least one.
pub(super) fn batch(inputs: &[Input], budget: usize) -> &[Input] {
    let mut bytes = 0usize;
    let count = inputs
        .iter()
        .take_while(|(_, k)| {
            bytes = bytes.saturating_add(Hessian::bytes(*k));
            bytes <= budget
        })
        .count();
    &inputs[..count.max(1).min(inputs.len())]
}

#[cfg(test)]
mod tests;
