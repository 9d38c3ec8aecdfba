//! AWQ: scales matmul inputs using calibration statistics.

use super::hessians::{ByHessian, batch};
use super::products::{Fold, Producer, Products};
use super::{Calibration, Input, WeightedMethods};
use crate::quantize::{Methods, Planned, Scaling};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::quant::awq::{self, Sample};
use transformer_lite::unstable::quant::gptq::{CholeskyFactor, DAMPING, Gptq};
use transformer_lite::unstable::quant::{ByGroup, ColumnMethod, Hessian, Method};

/// Number of sampled weight columns when searching for scales.
const SAMPLE: usize = 48;

/// Activation-aware scaling of matmul inputs, with errors weighted by the mean squares of the
/// scaled inputs.
///
/// An input is scaled if everything affected can change with it: every weight that reads it is
/// quantized, and it is produced by a quantized matrix, or by vectors that are initializers with no
/// other use.
pub struct AwqMethods<'a> {
    calibration: &'a Calibration<'a>,
    products: &'a Products<'a>,
    method: Method,
    weighted: WeightedMethods<'a>,
    /// By weight: mean squares of its scaled inputs, and scales of its rows.
    rows: HashMap<String, (Vec<f32>, Vec<f32>)>,
    /// By weight: divisors of its columns.
    columns: HashMap<String, Vec<f32>>,
    /// By initializer: divisors of its elements.
    divisors: HashMap<String, Vec<f32>>,
    compensation: Option<Compensation<'a>>,
}

/// Data that [`Gptq`] needs to round scaled weights.
struct Compensation<'a> {
    hessians: ByHessian<'a, Hessian>,
    /// For the scaled inputs of the last requested weight; weights that read the same value are
    /// consecutive.
    last: Mutex<Option<(Vec<String>, Arc<CholeskyFactor>)>>,
    /// Identifies the model.
    model: String,
}

impl Compensation<'_> {
    /// The factor for a weight whose rows are multiplied by `factors`, if given; `None` for a
    /// weight of no matmul.
    fn of(&self, weight: &str, factors: Option<&[f32]>) -> Result<Option<Arc<CholeskyFactor>>> {
        let inputs = self.hessians.inputs(weight);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, factor)) = last.as_ref().filter(|(of, _)| *of == inputs) {
            return Ok(Some(factor.clone()));
        }
        let Some(hessian) = self.hessians.of(weight)? else {
            return Ok(None);
        };
        let made = match factors {
            Some(factors) => hessian
                .divided(factors)
                .and_then(|h| CholeskyFactor::new(&h, DAMPING)),
            None => CholeskyFactor::new(&hessian, DAMPING),
        };
        let failed = |e| Error::other(Stage::Quantize, format!("weight \"{weight}\": {e}"));
        let factor = Arc::new(made.map_err(failed)?);
        *last = Some((inputs, factor.clone()));
        Ok(Some(factor))
    }
}

impl<'a> AwqMethods<'a> {
    /// For the model that `calibration` opens and that `products` describe; groups are fitted with
    /// `method`.
    pub fn new(calibration: &'a Calibration<'a>, products: &'a Products<'a>, method: Method) -> Self {
        Self {
            calibration,
            products,
            method,
            weighted: WeightedMethods::new(calibration, products, method),
            rows: HashMap::new(),
            columns: HashMap::new(),
            divisors: HashMap::new(),
            compensation: None,
        }
    }

    /// Rounds scaled weights with [`Gptq`].
    pub fn compensated(self) -> Self {
        Self {
            compensation: Some(Compensation {
                hessians: ByHessian::new(self.calibration, self.products, Ok),
                last: Mutex::default(),
                model: String::new(),
            }),
            ..self
        }
    }

    /// Records what the scales of an input change.
    fn fold(&mut self, fold: &Fold, factors: &[f32]) {
        for weight in &fold.weights {
            let squares = self.weighted.squares(weight).unwrap_or_default();
            let scaled = awq::importance(squares, factors);
            self.rows.insert(weight.clone(), (scaled, factors.to_vec()));
        }
        let vectors = match &fold.producer {
            Producer::Vectors(names) => names,
            Producer::Columns { weight, vectors } => {
                self.columns.insert(weight.clone(), factors.to_vec());
                vectors
            }
        };
        self.divisors
            .extend(vectors.iter().map(|v| (v.clone(), factors.to_vec())));
    }
}

/// True if everything that a fold changes can be changed.
fn can_fold(fold: &Fold, planned: &Planned<'_>) -> bool {
    let (matrix, vectors) = match &fold.producer {
        Producer::Vectors(names) => (None, names),
        Producer::Columns { weight, vectors } => (Some(weight), vectors),
    };
    let fixed = fold
        .weights
        .iter()
        .chain(matrix)
        .find(|w| planned.format(w).is_none());
    let fixed = fixed.or_else(|| vectors.iter().find(|v| !planned.is_free(v)));
    if let Some(name) = fixed {
        log::debug!(
            "awq: not scaling \"{}\" because \"{name}\" cannot change",
            fold.input
        );
    }
    fixed.is_none()
}

/// The scales for the inputs of `weights`.
fn search(fold: &Fold, hessian: &Hessian, planned: &Planned<'_>, method: Method) -> Result<Vec<f32>> {
    let mut columns = Vec::with_capacity(fold.weights.len());
    for weight in &fold.weights {
        // All of them are quantized.
        if let Some((bits, group)) = planned.format(weight) {
            columns.push((bits, group, planned.sample(weight, SAMPLE)?));
        }
    }
    let samples: Vec<Sample<'_>> = columns
        .iter()
        .map(|(bits, group, columns)| Sample {
            bits: *bits,
            group: *group,
            columns,
        })
        .collect();
    let names = fold.weights.join("\", \"");
    let found = awq::search(hessian, &samples, method)
        .map_err(|e| Error::other(Stage::Quantize, format!("weight \"{names}\": {e}")))?;
    log::debug!(
        "awq: scaling \"{names}\" with alpha {:.2}, loss {:.3e} of {:.3e}",
        found.alpha,
        found.loss.0,
        found.loss.1
    );
    Ok(found.factors)
}

impl Methods for AwqMethods<'_> {
    fn name(&self) -> &'static str {
        match self.compensation {
            Some(_) => "awq-gptq",
            None => "awq",
        }
    }

    fn prepare(&mut self, planned: &Planned<'_>) -> Result<()> {
        self.weighted.prepare(planned)?;
        self.rows.clear();
        self.columns.clear();
        self.divisors.clear();
        let mut folds = self.products.folds();
        folds.retain(|f| can_fold(f, planned));
        let model = planned.model()?;
        if let Some(c) = &mut self.compensation {
            c.model.clone_from(&model);
            *c.last.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let key = |fold: &Fold| {
            let formats: Vec<_> = fold.weights.iter().map(|w| planned.format(w)).collect();
            let (method, calibration) = (self.method.name(), self.calibration.key());
            format!("awq of {method} for {formats:?}, {calibration} of {model}")
        };
        // Each element is a list that holds one list of scales.
        let mut known: Vec<Option<Vec<Vec<f32>>>> = Vec::with_capacity(folds.len());
        for (i, fold) in folds.iter().enumerate() {
            known.push(planned.recall(&format!("factors-{i}"), &key(fold)));
        }
        let wanted: Vec<usize> = (0..folds.len()).filter(|i| known[*i].is_none()).collect();
        let inputs: Vec<Input> = wanted
            .iter()
            .map(|i| (folds[*i].input.clone(), folds[*i].k))
            .collect();
        let (mut left, mut rest) = (inputs.as_slice(), wanted.iter());
        while !left.is_empty() {
            let now = batch(left, self.calibration.budget);
            left = &left[now.len()..];
            for (hessian, i) in self.calibration.hessians(now)?.into_iter().zip(rest.by_ref()) {
                let fold = &folds[*i];
                let make = || Ok(vec![search(fold, &hessian, planned, self.method)?]);
                known[*i] = Some(planned.remember(&format!("factors-{i}"), &key(fold), make)?);
            }
        }
        for (fold, factors) in folds.iter().zip(known) {
            self.fold(fold, &factors.unwrap_or_default().concat());
        }
        Ok(())
    }

    fn of<'b>(&'b self, weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'b>> {
        if let Some(compensation) = &self.compensation
            && let Some(factor) = compensation.of(weight, self.scaling(weight).rows)?
        {
            return Ok(Box::new(Gptq {
                factor,
                method: self.method,
            }));
        }
        let scaled = self.rows.get(weight).map(|(squares, _)| squares.as_slice());
        Ok(Box::new(ByGroup {
            method: self.method,
            importance: scaled.or_else(|| self.weighted.squares(weight)),
        }))
    }

    fn scaling(&self, weight: &str) -> Scaling<'_> {
        Scaling {
            rows: self.rows.get(weight).map(|(_, factors)| factors.as_slice()),
            columns: self.columns.get(weight).map(Vec::as_slice),
        }
    }

    fn divisor(&self, initializer: &str) -> Option<&[f32]> {
        self.divisors.get(initializer).map(Vec::as_slice)
    }

    fn changed(&self) -> Vec<&str> {
        let all = self
            .rows
            .keys()
            .chain(self.columns.keys())
            .chain(self.divisors.keys());
        all.map(String::as_str).collect()
    }

    fn key(&self, weight: &str) -> String {
        let Scaling { rows, columns } = self.scaling(weight);
        let mut crc = crc32fast::Hasher::new();
        for numbers in [rows, columns] {
            crc.update(bytemuck::cast_slice(numbers.unwrap_or_default()));
            crc.update(&[0]);
        }
        let (factors, weighted) = (crc.finalize(), self.weighted.key(weight));
        match &self.compensation {
            // As with `gptq`, the inputs depend on all layers before the weight.
            Some(c) => format!("awq {factors:08x} with gptq, {weighted} of {}", c.model),
            None => format!("awq {factors:08x}, {weighted}"),
        }
    }
}

#[cfg(test)]
mod tests;
