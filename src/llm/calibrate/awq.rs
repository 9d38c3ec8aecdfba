//! Methods that weigh errors by the inputs of a calibration, and `awq`, which scales the inputs too.

use super::{Calibration, Input, batch};
use crate::error::{Error, Result, Stage};
use crate::graph::onnx::quantize::{Methods, Options, Scaling};
use crate::graph::products::{Maker, Product, Products};
use crate::quant::awq::{self, Sample};
use crate::quant::{ByGroup, ColumnMethod, Method, Moments, group_size};
use crate::tensor::HostTensor;
use std::collections::HashMap;

/// Columns of a weight that stand for all when factors are searched.
const SAMPLE: usize = 48;

/// A method that weighs the errors of weights by the mean squares of their inputs, after a scaling of these or without.
pub struct Weighted {
    method: Method,
    key: String,
    /// By weight: mean squares of what its products read, scaled.
    squares: HashMap<String, Vec<f32>>,
    /// By weight: factors of its rows, divisors of its columns.
    rows: HashMap<String, Vec<f32>>,
    columns: HashMap<String, Vec<f32>>,
    /// By constant: divisors of its elements.
    divisors: HashMap<String, Vec<f32>>,
}

impl Weighted {
    /// Without scaling.
    pub fn new(calibration: &Calibration<'_>, products: &Products<'_>, method: Method) -> Result<Self> {
        let mut inputs: Vec<Input> = products.all().iter().map(|p| (p.input.clone(), p.k)).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let squares = calibration.squares(&inputs)?;
        let by_input: HashMap<&str, &Vec<f32>> = inputs
            .iter()
            .map(|(name, _)| name.as_str())
            .zip(&squares)
            .collect();
        let mut by_weight: HashMap<String, Vec<f32>> = HashMap::new();
        for p in products.all() {
            let Some(squares) = by_input.get(p.input.as_str()) else {
                continue;
            };
            match by_weight.get_mut(&p.weight) {
                None => {
                    by_weight.insert(p.weight.clone(), (*squares).clone());
                }
                Some(sum) => sum.iter_mut().zip(squares.iter()).for_each(|(s, x)| *s += x),
            }
        }
        Ok(Self {
            method,
            key: format!("{} by inputs, {}", method.name(), calibration.key()),
            squares: by_weight,
            rows: HashMap::new(),
            columns: HashMap::new(),
            divisors: HashMap::new(),
        })
    }

    /// With activation-aware scaling of each input that what makes it can divide: factors are searched for the formats that `options`
    /// ask for, on some columns of each weight.
    pub fn scaled(calibration: &Calibration<'_>, products: &Products<'_>, options: &Options) -> Result<Self> {
        let mut out = Self::new(calibration, products, options.method)?;
        out.key = format!("awq, {}", out.key);
        let folds = products.folds();
        let inputs: Vec<Input> = folds.iter().map(|f| (f.input.clone(), f.k)).collect();
        let mut rest = folds.iter();
        let mut left = inputs.as_slice();
        while !left.is_empty() {
            let now = batch(left);
            left = &left[now.len()..];
            for (fold, moments) in rest.by_ref().zip(calibration.moments(now)?) {
                let factors = search(products, &fold.weights, &moments, options)?;
                for weight in &fold.weights {
                    if let Some(squares) = out.squares.get_mut(weight) {
                        *squares = awq::importance(squares, &factors);
                    }
                    out.rows.insert(weight.clone(), factors.clone());
                }
                let vectors = match &fold.maker {
                    Maker::Vectors(names) => names,
                    Maker::Columns { weight, vectors } => {
                        out.columns.insert(weight.clone(), factors.clone());
                        vectors
                    }
                };
                out.divisors
                    .extend(vectors.iter().map(|v| (v.clone(), factors.clone())));
            }
        }
        Ok(out)
    }
}

/// The factors for the inputs of `weights`.
fn search(
    products: &Products<'_>,
    weights: &[String],
    moments: &Moments,
    options: &Options,
) -> Result<Vec<f32>> {
    let of = |name: &str, e: &dyn std::fmt::Display| {
        Error::other(Stage::Quantize, format!("weight \"{name}\": {e}"))
    };
    let found = weights.iter().flat_map(|w| products.of_weight(w));
    let mut columns = Vec::new();
    for p in found {
        let tensor = products
            .tensor(p)
            .ok_or_else(|| of(&p.weight, &"it is no constant"))?;
        columns.push((p, sample(p, tensor).map_err(|e| of(&p.weight, &e))?));
    }
    let samples: Vec<Sample<'_>> = columns
        .iter()
        .map(|(p, columns)| Sample {
            bits: if p.output == "logits" {
                options.head_bits
            } else {
                options.bits
            },
            group: group_size(options.group_size, p.k),
            columns,
            #[expect(clippy::cast_precision_loss, reason = "sizes of a matrix")]
            share: p.n as f64 * p.k as f64 / columns.len().max(1) as f64,
        })
        .collect();
    let found =
        awq::search(moments, &samples, options.method).map_err(|e| of(&weights.join("\", \""), &e))?;
    log::debug!(
        "awq: {} by alpha {:.2}, loss {:.3e} of {:.3e}",
        weights.join(", "),
        found.alpha,
        found.loss.0,
        found.loss.1
    );
    Ok(found.factors)
}

/// Some columns of a weight, evenly spread, one after the other.
fn sample(p: &Product, tensor: &HostTensor) -> Result<Vec<f32>, crate::tensor::TensorError> {
    let elements = tensor.to_f32()?;
    let count = SAMPLE.min(p.n);
    let mut out = Vec::with_capacity(count * p.k);
    for i in 0..count {
        let column = i * p.n / count;
        if p.transposed {
            out.extend(elements.iter().skip(column * p.k).take(p.k));
        } else {
            out.extend(elements.iter().skip(column).step_by(p.n));
        }
    }
    Ok(out)
}

impl Methods for Weighted {
    fn of<'b>(&'b self, weight: &str, _k: usize) -> Result<Box<dyn ColumnMethod + 'b>> {
        Ok(Box::new(ByGroup {
            method: self.method,
            importance: self.importance(weight),
        }))
    }

    fn importance(&self, weight: &str) -> Option<&[f32]> {
        self.squares.get(weight).map(Vec::as_slice)
    }

    fn scaling(&self, weight: &str) -> Scaling<'_> {
        Scaling {
            rows: self.rows.get(weight).map(Vec::as_slice),
            columns: self.columns.get(weight).map(Vec::as_slice),
        }
    }

    fn divisor(&self, initializer: &str) -> Option<&[f32]> {
        self.divisors.get(initializer).map(Vec::as_slice)
    }

    fn key(&self, weight: &str) -> String {
        let mut crc = crc32fast::Hasher::new();
        for numbers in [&self.squares, &self.rows, &self.columns] {
            let numbers = numbers.get(weight).map(Vec::as_slice).unwrap_or_default();
            crc.update(bytemuck::cast_slice(numbers));
            crc.update(&[0]);
        }
        format!("{} {:08x}", self.key, crc.finalize())
    }
}
