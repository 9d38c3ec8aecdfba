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
mod weighted;

pub use awq::AwqMethods;
pub use gptq::GptqMethods;
pub use weighted::WeightedMethods;

use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::engine::Watch;
use transformer_lite::unstable::llm::perplexity::Text;
use transformer_lite::unstable::quant::{Hessian, HessianError};

/// Bytes of Hessians held at a time; a single Hessian may exceed it.
pub const BUDGET: usize = 1 << 30;

/// Opens the model with the named values watched.
pub type Opener<'a> = dyn Fn(&[String]) -> Result<Box<dyn Watch>> + Sync + 'a;

/// Receives rows of a value, with its index among the inputs.
type Take<'a> = dyn FnMut(usize, &[f32]) -> Result<(), HessianError> + 'a;

/// Progress of a run over the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Finished windows.
    pub done: usize,
    /// Number of windows.
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
            model.watch(window, &mut |i, rows| {
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
mod tests {
    use super::*;
    use tlite_testing::{assert_carries, assert_usage};
    use transformer_lite::unstable::llm::LanguageModel;

    /// Tells `[token, 1]` and `[cache length]` for each token, in two pieces.
    struct Telling {
        cache: Vec<u32>,
    }

    impl LanguageModel for Telling {
        fn vocab(&self) -> usize {
            1
        }
        fn context(&self) -> usize {
            4
        }
        fn len(&self) -> usize {
            self.cache.len()
        }
        fn forward(&mut self, _: &[u32], _: &mut Vec<f32>) -> Result<()> {
            Ok(())
        }
        fn forward_all(&mut self, _: &[u32]) -> Result<Vec<f32>> {
            Ok(vec![])
        }
        fn truncate(&mut self, len: usize) -> usize {
            self.cache.truncate(len);
            self.cache.len()
        }
    }

    impl Watch for Telling {
        fn watch(&mut self, tokens: &[u32], take: &mut dyn FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
            for part in tokens.chunks(2) {
                let rows: Vec<f32> = part.iter().flat_map(|t| [*t as f32, 1.0]).collect();
                self.cache.extend(part);
                assert!(
                    self.cache.len() <= self.context(),
                    "windows begin with an empty cache"
                );
                take(0, &rows)?;
                take(1, &vec![self.cache.len() as f32; part.len()])?;
            }
            Ok(())
        }
    }

    fn open(names: &[String]) -> Result<Box<dyn Watch>> {
        assert_eq!(names, ["a", "b"]);
        Ok(Box::new(Telling { cache: vec![] }))
    }

    fn inputs() -> Vec<Input> {
        vec![("a".to_owned(), 2), ("b".to_owned(), 1)]
    }

    #[test]
    fn windows_are_summed_up() {
        let text = Text {
            tokens: vec![1, 2, 3, 4, 5, 6, 7],
            start: vec![9],
        };
        let seen = std::sync::Mutex::new(Vec::new());
        let progress = |p: Progress| seen.lock().unwrap().push((p.done, p.total));
        let calibration = Calibration::new(&text, 4, 5, "host", &open, &progress).unwrap();
        assert_eq!(calibration.windows, [vec![9, 1, 2, 3], vec![9, 4, 5]]);
        let hessians = calibration.hessians(&inputs()).unwrap();
        assert_eq!(hessians[0].sum(), [81.0 * 2.0 + 55.0, 33.0, 33.0, 7.0]);
        assert_eq!((hessians[0].rows(), hessians[1].rows()), (7, 7));
        let squares = calibration.squares(&inputs()).unwrap();
        for (m, s) in hessians.iter().zip(&squares) {
            assert_eq!(m.mean_squares(), *s);
        }
        assert_eq!(*seen.lock().unwrap(), [(1, 2), (2, 2), (1, 2), (2, 2)]);
        let other = Calibration::new(&text, 4, 6, "host", &open, &progress).unwrap();
        assert_ne!(calibration.key(), other.key());
        let elsewhere = Calibration::new(&text, 4, 5, "a device", &open, &progress).unwrap();
        assert_ne!(calibration.key(), elsewhere.key());
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let quiet = |_| ();
        let text = |tokens: &[u32]| Text {
            tokens: tokens.to_vec(),
            start: vec![9],
        };
        let new = |t: &Text, window| {
            Calibration::new(t, window, 9, "host", &open, &quiet)
                .err()
                .unwrap()
        };
        assert_usage(&new(&text(&[]), 4), "calibration", &[]);
        assert_usage(&new(&text(&[1]), 1), "calibration", &["1"]);
        let good = text(&[1, 2]);
        let calibration = Calibration::new(&good, 4, 9, "host", &open, &quiet).unwrap();
        let wrong = [("a".to_owned(), 5), ("b".to_owned(), 1)];
        for e in [
            calibration.hessians(&wrong).unwrap_err(),
            calibration.squares(&wrong).unwrap_err(),
        ] {
            assert_carries(e, &["\"a\"", "4", "5"]);
        }
    }
}
