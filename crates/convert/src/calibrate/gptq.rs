//! GPTQ: error compensation with calibration Hessians.

use super::Calibration;
use super::hessians::ByHessian;
use super::products::Products;
use crate::quantize::{Methods, Planned};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::quant::gptq::{CholeskyFactor, DAMPING, Gptq};
use transformer_lite::unstable::quant::{ByGroup, ColumnMethod, Method};

/// [`Gptq`] for matmul weights. Tables, and weights with other readers, are rounded without
/// compensation.
pub struct GptqMethods<'a> {
    calibration: &'a Calibration<'a>,
    method: Method,
    factors: ByHessian<'a, CholeskyFactor>,
    /// Identifies the model.
    model: String,
}

impl<'a> GptqMethods<'a> {
    /// For the model that `calibration` opens and that `products` describe; groups are fitted with
    /// `method`.
    pub fn new(calibration: &'a Calibration<'a>, products: &'a Products<'a>, method: Method) -> Self {
        Self {
            calibration,
            method,
            factors: ByHessian::new(calibration, products, |h| CholeskyFactor::new(&h, DAMPING)),
            model: String::new(),
        }
    }
}

impl Methods for GptqMethods<'_> {
    fn name(&self) -> &'static str {
        "gptq"
    }

    fn prepare(&mut self, planned: &Planned<'_>) -> Result<()> {
        self.model = planned.model()?;
        Ok(())
    }

    fn of<'b>(&'b self, weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'b>> {
        Ok(match self.factors.of(weight)? {
            Some(factor) => Box::new(Gptq {
                factor,
                method: self.method,
            }),
            None => Box::new(ByGroup::from(self.method)),
        })
    }

    fn key(&self, weight: &str) -> String {
        let method = self.method.name();
        match self.factors.inputs(weight).is_empty() {
            true => method.to_owned(),
            // The inputs depend on all layers before the weight.
            false => format!("gptq of {method}, {} of {}", self.calibration.key(), self.model),
        }
    }
}
