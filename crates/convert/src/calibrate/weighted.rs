//! Weights quantization errors by the mean squares of calibration inputs.

use super::hessians::ByHessian;
use super::products::Products;
use super::{Calibration, Input};
use crate::quantize::{Methods, Planned};
use std::collections::BTreeMap;
use std::sync::Arc;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::quant::{ByGroup, ColumnMethod, Hessian, Method};

/// Fits each group with errors weighted by the mean squares of the inputs.
pub struct WeightedMethods<'a> {
    calibration: &'a Calibration<'a>,
    products: &'a Products<'a>,
    method: Method,
    hessians: ByHessian<'a, Hessian>,
    /// By weight: mean squares of the inputs of its matmuls.
    squares: BTreeMap<String, Vec<f32>>,
}

impl<'a> WeightedMethods<'a> {
    /// For the model that `calibration` opens and that `products` describe.
    pub fn new(calibration: &'a Calibration<'a>, products: &'a Products<'a>, method: Method) -> Self {
        Self {
            calibration,
            products,
            method,
            hessians: ByHessian::new(calibration, products, Ok),
            squares: BTreeMap::new(),
        }
    }

    /// Mean squares of the inputs of a weight, if only its matmuls read it.
    pub fn squares(&self, weight: &str) -> Option<&[f32]> {
        self.squares.get(weight).map(Vec::as_slice)
    }
}

impl Methods for WeightedMethods<'_> {
    fn name(&self) -> &'static str {
        self.method.name()
    }

    fn prepare(&mut self, planned: &Planned<'_>) -> Result<()> {
        let mut inputs: Vec<Input> = self
            .products
            .all()
            .iter()
            .map(|p| (p.input.clone(), p.k))
            .collect();
        inputs.sort_unstable();
        inputs.dedup();
        let key = format!("mean squares, {} of {}", self.calibration.key(), planned.model()?);
        let squares: Vec<Vec<f32>> =
            planned.remember("squares", &key, || self.calibration.squares(&inputs))?;
        let by_input: BTreeMap<&str, &Vec<f32>> = inputs
            .iter()
            .map(|(name, _)| name.as_str())
            .zip(&squares)
            .collect();
        self.squares.clear();
        for p in self.products.all() {
            let Some(squares) = by_input.get(p.input.as_str()) else {
                continue;
            };
            match self.squares.get_mut(&p.weight) {
                None => {
                    self.squares.insert(p.weight.clone(), (*squares).clone());
                }
                Some(sum) => sum.iter_mut().zip(squares.iter()).for_each(|(s, x)| *s += x),
            }
        }
        Ok(())
    }

    fn of<'b>(&'b self, weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'b>> {
        Ok(Box::new(ByGroup {
            method: self.method,
            importance: self.squares(weight),
        }))
    }

    fn hessian(&self, weight: &str) -> Result<Option<Arc<Hessian>>> {
        self.hessians.of(weight)
    }

    fn key(&self, weight: &str) -> String {
        let method = self.method.name();
        self.squares(weight).map_or_else(
            || method.to_owned(),
            |s| {
                format!(
                    "{method} by inputs {:08x}",
                    crc32fast::hash(bytemuck::cast_slice(s))
                )
            },
        )
    }
}
