//! Calibration: a decoder runs over a text, and what comes to the inputs of its matrix products decides how their weights
//! are quantized.
//!
//! The inputs are those of the unquantized model. Windows of the text are fed to an empty cache each; all their positions count
//! alike. The Hessian of K inputs takes K x K floats, so the text is run over several times where those of all layers
//! exceed [`BUDGET`]; layers that read the same value share one. A run ends with the last value that is asked for.

mod awq;
mod gptq;
mod hessians;
mod weighted;

pub use awq::AwqMethods;
pub use gptq::GptqMethods;
pub use weighted::WeightedMethods;

use super::engine::Watch;
use super::perplexity::Text;
use crate::error::{Error, Result, Stage};
use crate::quant::{Hessian, HessianError};

/// Bytes of Hessians that are held at a time, if that of one input is not more.
pub const BUDGET: usize = 1 << 30;

/// Opens the model with values, by name, that it tells.
pub type Opener<'a> = dyn Fn(&[String]) -> Result<Box<dyn Watch>> + Sync + 'a;

/// Takes rows of a value, with its place among the inputs.
type Take<'a> = dyn FnMut(usize, &[f32]) -> Result<(), HessianError> + 'a;

/// How far a run over the text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Windows done.
    pub done: usize,
    /// Windows in all.
    pub total: usize,
}

/// A text and a model to run over it.
pub struct Calibration<'a> {
    windows: Vec<Vec<u32>>,
    place: String,
    /// Bytes of Hessians that are held at a time.
    budget: usize,
    open: &'a Opener<'a>,
    progress: &'a (dyn Fn(Progress) + Sync),
}

/// A value of the graph and the length of its rows.
pub type Input = (String, usize);

impl<'a> Calibration<'a> {
    /// Takes the first `limit` tokens of `text` in windows of at most `window`, start tokens included. `place` names what the model runs on, and how, as far as that
    /// changes what it computes. `progress` is called after each window of each run. Usage errors: no token, or a context of `window` tokens without room for one.
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
            return Err(Error::usage("calibration", "the text has no tokens"));
        }
        let room = window.saturating_sub(text.start.len());
        if room == 0 {
            let what = format!("the model's context of {window} tokens has no room for text");
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

    /// The same with Hessians of so many bytes at a time in place of [`BUDGET`], if that of one input is not more.
    #[must_use]
    pub fn with_budget(self, budget: usize) -> Self {
        Self { budget, ..self }
    }

    /// Names the text and the place, so that what was made by them can be told from what was not.
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

    /// Runs over the text; `take` gets the place of a value among `inputs` and rows of it.
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

    /// The mean squares of the elements of each of `inputs`, in one run.
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
            reason = "means of a text, single precision is enough"
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
    use crate::llm::LanguageModel;
    use crate::testing::{assert_carries, assert_usage};

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
