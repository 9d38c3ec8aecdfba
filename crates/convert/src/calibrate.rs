//! Calibration: runs a decoder over a text and collects statistics of the matmul inputs, which
//! decide how the weights are quantized.
//!
//! The inputs are those of the unquantized model. Each window of the text starts with an empty
//! cache; all positions have equal weight. The Hessian of a K-wide input takes K x K floats. If the
//! Hessians of all layers exceed [`BUDGET`], the text is run several times. Layers that read the
//! same value share a Hessian. A run stops after the last requested value.

mod awq;
mod gptq;
mod hessians;
mod products;
mod weighted;

pub use awq::AwqMethods;
pub use gptq::GptqMethods;
pub use products::Products;
pub use weighted::WeightedMethods;

use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::engine::Observe;
use transformer_lite::unstable::llm::perplexity::Text;
use transformer_lite::unstable::quant::{Hessian, HessianError};

/// Bytes of Hessians held at a time; a single Hessian may exceed it.
pub const BUDGET: usize = 1 << 30;

/// Opens the model with the named values observed.
pub type Opener<'a> = dyn Fn(&[String]) -> Result<Box<dyn Observe>> + Sync + 'a;

/// Receives rows of a value, with its index among the inputs.
type Take<'a> = dyn FnMut(usize, &[f32]) -> Result<(), HessianError> + 'a;

/// Progress of a run over the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
}

/// A text and the model to run over it.
pub struct Calibration<'a> {
    windows: Vec<Vec<u32>>,
    place: String,
    /// Bytes of Hessians held at a time.
    budget: usize,
    open: &'a Opener<'a>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

/// Name of a value in the graph, and its row length.
pub type Input = (String, usize);

impl<'a> Calibration<'a> {
    /// Uses the first `limit` tokens of `text`, in windows of at most `window` tokens including
    /// start tokens. `place` names the backend and the settings that affect results. `progress` is
    /// called after each window of each run. Usage errors: no tokens, or no room for text in
    /// `window`.
    pub fn new(
        text: &Text,
        window: usize,
        limit: usize,
        place: &str,
        open: &'a Opener<'a>,
        progress: &'a (dyn Fn(Progress) + Sync),
    ) -> Result<Self> {
        let tokens = text.tokens.get(..limit).unwrap_or(&text.tokens);
        if tokens.is_empty() {
            return Err(Error::usage(
                "calibration",
                "the text has 0 tokens; expected at least 1",
            ));
        }
        let room = window.saturating_sub(text.start.len());
        if room == 0 {
            let what = format!(
                "the model's context of {window} tokens has no room for text after the \
             start tokens"
            );
            return Err(Error::usage("calibration", what));
        }
        let windows = tokens
            .chunks(room)
            .map(|part| [text.start.as_slice(), part].concat())
            .collect();
        Ok(Self {
            windows,
            place: place.to_owned(),
            budget: BUDGET,
            open,
            progress,
        })
    }

    /// Replaces [`BUDGET`] by `budget` bytes.
    #[must_use]
    pub fn with_budget(self, budget: usize) -> Self {
        Self { budget, ..self }
    }

    /// Identifies the text and the place in stored results.
    fn key(&self) -> String {
        let bytes: Vec<u8> = self
            .windows
            .concat()
            .iter()
            .flat_map(|t| t.to_le_bytes())
            .collect();
        let first = self.windows.first().map_or(0, Vec::len);
        format!(
            "calibration {:08x} in windows of {first} on {}",
            crc32fast::hash(&bytes),
            self.place
        )
    }

    /// Runs over the text and calls `take` with rows of each of `inputs`.
    fn run(&self, inputs: &[Input], take: &mut Take<'_>) -> Result<()> {
        let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
        let mut model = (self.open)(&names)?;
        for (done, window) in self.windows.iter().enumerate() {
            model.truncate(0);
            model.observe(window, &mut |i, rows| {
                take(i, rows).map_err(|e| {
                    let name = names.get(i).map_or("", String::as_str);
                    Error::other(Stage::Quantize, format!("value \"{name}\": {e}"))
                })
            })?;
            (self.progress)(Progress {
                done: done + 1,
                total: self.windows.len(),
            });
        }
        Ok(())
    }

    /// The Hessian of each of `inputs`.
    pub fn hessians(&self, inputs: &[Input]) -> Result<Vec<Hessian>> {
        let mut all: Vec<Hessian> = inputs.iter().map(|(_, k)| Hessian::new(*k)).collect();
        self.run(inputs, &mut |i, rows| {
            all.get_mut(i).map_or(Ok(()), |m| m.add(rows))
        })?;
        Ok(all)
    }

    /// The mean square of each element of each of `inputs`, in one run.
    pub fn squares(&self, inputs: &[Input]) -> Result<Vec<Vec<f32>>> {
        let mut sums: Vec<(usize, Vec<f64>)> = inputs.iter().map(|(_, k)| (0, vec![0.0; *k])).collect();
        self.run(inputs, &mut |i, rows| {
            let Some((count, sums)) = sums.get_mut(i) else {
                return Ok(());
            };
            let k = sums.len();
            if k == 0 || !rows.len().is_multiple_of(k) {
                let found = rows.len();
                return Err(HessianError::Size { k, found });
            }
            for row in rows.chunks_exact(k) {
                *count += 1;
                for (s, x) in sums.iter_mut().zip(row) {
                    *s += f64::from(*x) * f64::from(*x);
                }
            }
            if sums.iter().all(|s| s.is_finite()) {
                Ok(())
            } else {
                Err(HessianError::NotFinite)
            }
        })?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "single precision is enough for means"
        )]
        let mean = |(count, sums): (usize, Vec<f64>)| {
            let count = count.max(1) as f64;
            sums.iter().map(|s| (s / count) as f32).collect()
        };
        Ok(sums.into_iter().map(mean).collect())
    }
}

#[cfg(test)]
mod tests;
