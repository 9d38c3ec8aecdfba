//! Perplexity of a model on a text, and divergence from a reference model.
//!
//! # Windows and scored tokens
//!
//! The text is encoded as a whole, without special tokens. Its tokens are scored in windows, in
//! order, each at most once. Every window starts with an empty cache and feeds up to `N` tokens,
//! each of which predicts its successor:
//!
//! * If the tokenizer puts a start token before every text, a window is the start token and the
//!   next tokens of the text without the last, so `N` tokens are scored. The first of them is
//!   predicted from the start token alone.
//! * Otherwise a window begins with the last token of the previous window, so `N` tokens are scored
//!   too. The first token of the text is not scored.
//!
//! The last window may be shorter. A token at position `p` of a window is predicted from `p + 1`
//! tokens, on average from about half a window. The perplexity is therefore higher than with a full
//! window before every token; compare only figures with the same window length.
//!
//! With `l` the natural logarithm of the softmax over the whole vocabulary, computed in `f64` from
//! `f32` logits:
//!
//! * the perplexity is `exp` of the mean of `-l(token)` over all scored tokens;
//! * the KL divergence at a position is `sum_v p_ref(v) * (l_ref(v) - l(v))`, in nats, from the
//!   reference to the model;
//! * the models agree at a position if their most likely tokens are equal (the first one on ties).
//!
//! Both models run side by side, a chunk at a time, so memory grows by only one number per
//! position.

use super::engine::CHUNK;
use super::sampler::not_finite;
use super::{Cancel, LanguageModel};
use crate::error::{Error, Result};
use crate::num;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

/// The tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Tokens, without special tokens.
    pub tokens: Vec<u32>,
    /// Start tokens before every text; may be empty. See [`super::Tokenizer::start`].
    pub start: Vec<u32>,
}

/// Tokens fed to an empty cache, and the tokens to predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window<'a> {
    /// Fed first; its last token predicts the first of `scored`.
    lead: &'a [u32],
    /// Scored tokens; all but the last are fed after `lead`.
    scored: &'a [u32],
}

impl Text {
    /// Number of tokens that can be scored.
    pub fn scorable(&self) -> usize {
        self.tokens.len().saturating_sub(self.unscored())
    }

    /// Number of tokens at the start of the text that nothing predicts.
    fn unscored(&self) -> usize {
        usize::from(self.start.is_empty())
    }

    /// Windows of at most `size` fed tokens over the first `limit` scorable tokens.
    fn windows(&self, size: usize, limit: usize) -> Vec<Window<'_>> {
        // A text without tokens has no windows.
        let scored = self.tokens.get(self.unscored()..).unwrap_or(&[]);
        let scored = scored.get(..limit).unwrap_or(scored);
        let each = (size + 1).saturating_sub(self.start.len().max(1)).max(1);
        let leads = self
            .tokens
            .chunks(each)
            .map(|tokens| match self.start.as_slice() {
                [] => &tokens[..1],
                start => start,
            });
        let windows = leads.zip(scored.chunks(each));
        windows.map(|(lead, scored)| Window { lead, scored }).collect()
    }
}

/// Options for scoring a text.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of tokens fed per window.
    pub window: usize,
    /// Maximum number of tokens to score.
    pub limit: Option<usize>,
    /// Stops after the current chunk; tokens scored so far are the result.
    pub cancel: Cancel,
}

/// Progress of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Scored tokens.
    pub done: usize,
    /// Tokens to score in total.
    pub total: usize,
    /// Perplexity so far.
    pub perplexity: f64,
}

/// Perplexity of a model over the scored tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    tokens: usize,
    sum: f64,
    squares: f64,
}

impl Perplexity {
    fn add(&mut self, loss: f64) {
        self.tokens += 1;
        self.sum += loss;
        self.squares += loss * loss;
    }

    /// Number of scored tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Mean negative log-likelihood per token, in nats; NaN before the first token.
    pub fn loss(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// The perplexity.
    pub fn value(&self) -> f64 {
        self.loss().exp()
    }

    /// Standard error of the perplexity, treating token losses as independent.
    pub fn standard_error(&self) -> f64 {
        let count = self.tokens as f64;
        let variance = (self.squares / count - self.loss() * self.loss()).max(0.0);
        self.value() * (variance / (count - 1.0).max(1.0)).sqrt()
    }
}

/// Comparison of a model with its reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Perplexity of the reference over the same tokens.
    pub reference: Perplexity,
    /// KL divergence at each scored position.
    divergences: Vec<f32>,
    agreements: usize,
}

impl Comparison {
    /// Mean KL divergence from the reference to the model, in nats.
    pub fn mean_divergence(&self) -> f64 {
        let sum: f64 = self.divergences.iter().map(|d| f64::from(*d)).sum();
        sum / self.divergences.len() as f64
    }

    /// Quantile of the KL divergence: the smallest value that at least `share` (0 to 1) of the
    /// positions do not exceed.
    pub fn divergence_at(&self, share: f64) -> f64 {
        let mut sorted = self.divergences.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let rank = (share.clamp(0.0, 1.0) * sorted.len() as f64).ceil() as usize;
        sorted
            .get(rank.saturating_sub(1))
            .map_or(f64::NAN, |d| f64::from(*d))
    }

    /// Share of positions at which both models predict the same most likely token.
    pub fn agreement(&self) -> f64 {
        self.agreements as f64 / self.divergences.len() as f64
    }
}

/// Result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Perplexity of the model.
    pub model: Perplexity,
    /// Comparison with the reference, if there is one.
    pub comparison: Option<Comparison>,
    /// Number of windows started.
    pub windows: usize,
    /// True if the evaluation was cancelled before the last token.
    pub cancelled: bool,
}

/// Scores `text` with `model`, and with `reference` if given. `progress` is called after each
/// chunk.
///
/// Usage errors: a text without a scorable token, a window longer than a context or shorter than
/// the start tokens, vocabularies of different size. Also returns errors of the models, and an
/// error for non-finite logits.
pub fn evaluate(
    model: &mut dyn LanguageModel,
    mut reference: Option<&mut dyn LanguageModel>,
    text: &Text,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report> {
    check(model, reference.as_deref(), text, options)?;
    let windows = text.windows(options.window, options.limit.unwrap_or(usize::MAX));
    let total = windows.iter().map(|w| w.scored.len()).sum();
    let mut report = Report {
        model: Perplexity::default(),
        comparison: reference.is_some().then(Comparison::default),
        windows: 0,
        cancelled: false,
    };
    for window in windows {
        report.windows += 1;
        model.truncate(0);
        if let Some(r) = &mut reference {
            r.truncate(0);
        }
        let before = window.lead.len() - 1;
        let (_, fed) = window.scored.split_last().unwrap_or((&0, &[]));
        let inputs = [window.lead, fed].concat();
        let mut rest = window.scored;
        for (i, chunk) in inputs.chunks(CHUNK).enumerate() {
            if options.cancel.is_cancelled() {
                report.cancelled = true;
                return Ok(report);
            }
            let rows = model.forward_all(chunk)?;
            let others = reference.as_mut().map(|r| r.forward_all(chunk)).transpose()?;
            // Skip logits of the lead before its last token.
            let skip = before.saturating_sub(i * CHUNK).min(chunk.len());
            let (targets, after) = rest.split_at(chunk.len() - skip);
            rest = after;
            let vocab = model.vocab();
            let scored = skip * vocab..chunk.len() * vocab;
            let rows = num::part(&rows, scored.clone())?;
            let others = others.as_deref().map(|o| num::part(o, scored)).transpose()?;
            let scores = score_rows(vocab, rows, others, targets);
            report.take(&scores)?;
            progress(Progress {
                done: report.model.tokens,
                total,
                perplexity: report.model.value(),
            });
        }
    }
    Ok(report)
}

fn check(
    model: &dyn LanguageModel,
    reference: Option<&dyn LanguageModel>,
    text: &Text,
    options: &Options,
) -> Result<()> {
    if text.scorable() == 0 {
        let (count, needed) = (text.tokens.len(), text.unscored() + 1);
        let what = format!("the text has {count} tokens; expected at least {needed}");
        return Err(Error::usage("text", what));
    }
    let room = reference.map_or(model.context(), |r| r.context().min(model.context()));
    let window = options.window;
    if window > room || window < text.start.len().max(1) {
        let least = text.start.len().max(1);
        let what = format!("a window of {window} tokens is out of range; expected {least} to {room}");
        return Err(Error::usage("context", what));
    }
    match reference {
        Some(r) if r.vocab() != model.vocab() => Err(Error::usage(
            "reference",
            format!(
                "its vocabulary has {} tokens, but the model's has {}; their predictions cannot be compared",
                r.vocab(),
                model.vocab()
            ),
        )),
        _ => Ok(()),
    }
}

impl Report {
    /// Adds the scores of some rows.
    fn take(&mut self, scores: &[Score]) -> Result<()> {
        for s in scores {
            if !s.loss.is_finite() {
                return Err(self.not_finite("model"));
            }
            self.model.add(s.loss);
            let (Some(c), Some(o)) = (&mut self.comparison, &s.other) else {
                continue;
            };
            if !o.loss.is_finite() || !o.divergence.is_finite() {
                return Err(self.not_finite("reference"));
            }
            c.reference.add(o.loss);
            c.divergences.push(o.divergence);
            c.agreements += usize::from(o.agrees);
        }
        Ok(())
    }

    fn not_finite(&self, whose: &str) -> Error {
        let at = self.model.tokens;
        not_finite(format!("those of the {whose} for scored token {at}"))
    }
}

/// Score of a row of logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Score {
    /// Negative log-likelihood of the actual token.
    pub loss: f64,
    other: Option<Other>,
}

/// Score of the reference's row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Other {
    loss: f64,
    divergence: f32,
    agrees: bool,
}

/// Scores rows of `vocab` logits, one per target, on all cores; `others` are the reference's.
pub(super) fn score_rows(vocab: usize, rows: &[f32], others: Option<&[f32]>, targets: &[u32]) -> Vec<Score> {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let mut scores = vec![Score::default(); targets.len()];
    let part = targets.len().div_ceil(cores).max(1);
    std::thread::scope(|scope| {
        for (i, (scores, targets)) in scores.chunks_mut(part).zip(targets.chunks(part)).enumerate() {
            scope.spawn(move || {
                for (j, (score, target)) in scores.iter_mut().zip(targets).enumerate() {
                    let at = (i * part + j) * vocab..(i * part + j + 1) * vocab;
                    let other = others.map(|o| &o[at.clone()]);
                    *score = score_row(&rows[at], other, *target as usize);
                }
            });
        }
    });
    scores
}

/// Index and value of the largest logit.
fn largest(row: &[f32]) -> (usize, f64) {
    let first = (0, f32::NEG_INFINITY);
    let of = |best: (usize, f32), (i, x): (usize, &f32)| if *x > best.1 { (i, *x) } else { best };
    let (place, value) = row.iter().enumerate().fold(first, of);
    (place, f64::from(value))
}

fn score_row(row: &[f32], other: Option<&[f32]>, target: usize) -> Score {
    let logit = |row: &[f32]| row.get(target).map_or(f64::NAN, |x| f64::from(*x));
    let (top, peak) = largest(row);
    let total: f64 = row.iter().map(|x| (f64::from(*x) - peak).exp()).sum();
    let norm = peak + total.ln();
    let other = other.map(|other| {
        let (its_top, peak) = largest(other);
        let (mut total, mut mean) = (0.0, 0.0);
        for (x, y) in row.iter().zip(other) {
            let weight = (f64::from(*y) - peak).exp();
            total += weight;
            mean += weight * (f64::from(*y) - f64::from(*x));
        }
        let its_norm = peak + total.ln();
        // Both sums use the same weights, so equal rows give exactly zero.
        let divergence = mean / total - (its_norm - norm);
        Other {
            loss: its_norm - logit(other),
            #[expect(clippy::cast_possible_truncation, reason = "single precision is enough")]
            divergence: divergence.max(if divergence.is_nan() { f64::NAN } else { 0.0 }) as f32,
            agrees: its_top == top,
        }
    });
    Score {
        loss: norm - logit(row),
        other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::llm::testing::FakeModel;
    use crate::testing::assert_usage;

    fn text(tokens: impl IntoIterator<Item = u32>, start: &[u32]) -> Text {
        Text {
            tokens: tokens.into_iter().collect(),
            start: start.to_vec(),
        }
    }

    fn options(window: usize) -> Options {
        Options {
            window,
            limit: None,
            cancel: Cancel::default(),
        }
    }

    /// Gives the token after the last one, or `skew` more, a logit of 5, all others 0.
    fn counting(vocab: usize, context: usize, skew: u32) -> FakeModel {
        let size = u32::try_from(vocab).unwrap();
        FakeModel::new(vocab, context, move |cache| {
            (cache.last().unwrap() + 1 + skew) % size
        })
    }

    /// Loss of the token with the logit 5 and of another, of 8.
    fn losses() -> (f64, f64) {
        let norm = (5f64.exp() + 7.0).ln();
        (norm - 5.0, norm)
    }

    #[test]
    fn every_token_but_the_first_is_scored_once() {
        for (count, size) in [(10u32, 3usize), (10, 4), (2, 5), (9, 9), (10, 1), (7, 2)] {
            let text = text(0..count, &[]);
            let windows = text.windows(size, usize::MAX);
            let scored: Vec<u32> = windows.iter().flat_map(|w| w.scored.to_vec()).collect();
            assert_eq!(scored, (1..count).collect::<Vec<_>>(), "windows of {size}");
            assert!(
                windows
                    .iter()
                    .all(|w| w.lead == [w.scored[0] - 1] && w.scored.len() <= size)
            );
        }
    }

    #[test]
    fn a_start_token_leads_every_window() {
        let text = text(0..7, &[90]);
        let windows = text.windows(3, usize::MAX);
        let scored: Vec<&[u32]> = windows.iter().map(|w| w.scored).collect();
        assert_eq!(scored, [&[0, 1, 2][..], &[3, 4, 5], &[6]]);
        assert!(windows.iter().all(|w| w.lead == [90]));
        assert_eq!(text.windows(3, 4).last().unwrap().scored, [3]);
        let two = Text {
            start: vec![90, 91],
            ..text
        };
        // Three tokens are fed, of which the first is not asked for anything.
        assert_eq!(two.windows(3, usize::MAX)[0].scored, [0, 1]);
        assert_eq!((two.scorable(), two.windows(2, usize::MAX).len()), (7, 7));
    }

    #[test]
    fn windows_are_fed_to_an_empty_cache() {
        let mut model = counting(8, 4, 0);
        let text = text([0, 1, 2, 3, 4, 5, 6], &[]);
        let mut seen = Vec::new();
        let report = evaluate(&mut model, None, &text, &options(4), &mut |p| {
            seen.push((p.done, p.total));
        })
        .unwrap();
        let fed: Vec<u32> = model.calls.concat();
        assert_eq!(fed, [0, 1, 2, 3, 4, 5]);
        assert_eq!(seen, [(4, 6), (6, 6)]);
        let (right, _) = losses();
        assert!((report.model.loss() - right).abs() < 1e-12 && report.windows == 2);
        assert!((report.model.value() - right.exp()).abs() < 1e-12);
        assert!(report.model.standard_error() < 1e-7, "all losses are equal");
    }

    #[test]
    fn the_start_tokens_are_not_scored() {
        let text = text([1, 2, 3, 4], &[6, 0]);
        let mut model = counting(8, 3, 0);
        let report = evaluate(&mut model, None, &text, &options(3), &mut |_| ()).unwrap();
        // The second window begins with 0 and is to predict 3.
        let (right, wrong) = losses();
        assert_eq!(model.calls.concat(), [6, 0, 1, 6, 0, 3]);
        let expected = (3.0 * right + wrong) / 4.0;
        assert!((report.model.loss() - expected).abs() < 1e-12);
        let spread = ((right - expected).powi(2) * 3.0 + (wrong - expected).powi(2)) / 4.0;
        let error = report.model.value() * (spread / 3.0).sqrt();
        assert!((report.model.standard_error() / error - 1.0).abs() < 1e-9);
    }

    #[test]
    fn windows_longer_than_a_chunk() {
        let long = u32::try_from(2 * CHUNK + 3).unwrap();
        let tokens: Vec<u32> = (0..=long).map(|i| i % 8).collect();
        for start in [&[][..], &[7], &[1, 2, 7]] {
            let mut model = counting(8, 1000, 0);
            let mut whole = text(tokens.clone(), start);
            if !start.is_empty() {
                whole.tokens.insert(0, 0);
            }
            let report = evaluate(&mut model, None, &whole, &options(1000), &mut |_| ()).unwrap();
            assert_eq!(report.model.tokens(), whole.scorable());
            let wrong = usize::from(!start.is_empty());
            let (right, missed) = losses();
            let sum = right * (whole.scorable() - wrong) as f64 + missed * wrong as f64;
            assert!(
                (report.model.loss() * whole.scorable() as f64 - sum).abs() < 1e-9,
                "{start:?}"
            );
        }
    }

    #[test]
    fn a_model_is_its_own_reference() {
        let text = text([0, 1, 2, 5, 6], &[]);
        let (mut model, mut same) = (counting(8, 8, 0), counting(8, 8, 0));
        let report = evaluate(&mut model, Some(&mut same), &text, &options(8), &mut |_| ()).unwrap();
        let c = report.comparison.unwrap();
        assert_eq!(
            (c.mean_divergence(), c.divergence_at(0.99), c.agreement()),
            (0.0, 0.0, 1.0)
        );
        assert_eq!(c.reference, report.model);
    }

    #[test]
    fn divergences_are_from_the_reference() {
        // The reference gives 4/7, 2/7, 1/7, the model equal parts.
        let other = [4f32.ln(), 2f32.ln(), 0.0];
        let s = score_row(&[1.0; 3], Some(&other), 0);
        let o = s.other.unwrap();
        let exact: f64 = [4.0f64, 2.0, 1.0]
            .iter()
            .map(|p| p / 7.0 * (p / 7.0 * 3.0).ln())
            .sum();
        assert!(
            (f64::from(o.divergence) - exact).abs() < 1e-7,
            "{} {exact}",
            o.divergence
        );
        assert!((s.loss - 3f64.ln()).abs() < 1e-12 && (o.loss - (7f64 / 4.0).ln()).abs() < 1e-7);
        assert!(o.agrees, "of equal logits the first is the largest");
        assert!(!score_row(&[0.0, 1.0, 0.0], Some(&other), 0).other.unwrap().agrees);
        // Far beyond what `exp` can take.
        let s = score_row(&[1e4, 0.0], Some(&[0.0, 1e4]), 0);
        assert_eq!(
            (s.loss, s.other.unwrap().loss, s.other.unwrap().divergence),
            (0.0, 1e4, 1e4)
        );
    }

    #[test]
    fn shares_of_positions() {
        let c = Comparison {
            divergences: (1..=200).rev().map(|i| i as f32).collect(),
            ..Comparison::default()
        };
        let at = [0.0, 0.005, 0.5, 0.99, 0.991, 1.0].map(|s| c.divergence_at(s));
        assert_eq!(at, [1.0, 1.0, 100.0, 198.0, 199.0, 200.0]);
        assert_eq!(c.mean_divergence(), 100.5);
        assert!(Comparison::default().divergence_at(0.99).is_nan());
    }

    #[test]
    fn a_cancelled_evaluation_tells_what_it_has() {
        let text = text((0..9).map(|i| i % 8), &[]);
        let options = Options {
            limit: Some(7),
            ..options(2)
        };
        let (mut model, cancel) = (counting(8, 8, 0), options.cancel.clone());
        let report = evaluate(&mut model, None, &text, &options, &mut |p| {
            assert_eq!(p.total, 7);
            if p.done == 4 {
                cancel.cancel();
            }
        })
        .unwrap();
        assert_eq!((report.cancelled, report.model.tokens()), (true, 4));
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let run = |model: &mut FakeModel, other: Option<&mut dyn LanguageModel>, text: &Text, window| {
            evaluate(model, other, text, &options(window), &mut |_| ()).unwrap_err()
        };
        let good = text(0..5, &[]);
        let (mut model, mut other) = (counting(8, 4, 0), counting(9, 3, 0));
        let e = run(&mut model, Some(&mut other), &good, 3);
        assert_usage(&e, "reference", &["9", "8"]);
        for (text, values) in [(text([], &[1]), ["0", "1"]), (text([3], &[]), ["1", "2"])] {
            let e = run(&mut model, None, &text, 3);
            assert_usage(&e, "text", &values);
        }
        let e = run(&mut model, None, &good, 5);
        assert_usage(&e, "context", &["1", "4"]);
        let e = run(&mut model, None, &text(0..5, &[1, 2]), 1);
        assert_usage(&e, "context", &["2", "4"]);
        assert!(model.calls.is_empty());
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error() {
        for (row, other) in [
            ([f32::NAN, 0.0], [0.0, 0.0]),
            ([0.0, f32::INFINITY], [0.0, 0.0]),
            ([0.0, 0.0], [0.0, f32::NAN]),
            ([0.0, 0.0], [f32::NEG_INFINITY, f32::NEG_INFINITY]),
        ] {
            let s = score_row(&row, Some(&other), 0);
            let mut report = Report {
                model: Perplexity::default(),
                comparison: Some(Comparison::default()),
                windows: 1,
                cancelled: false,
            };
            let e = report.take(&[s]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFinite, "{row:?} {other:?}");
        }
    }
}
