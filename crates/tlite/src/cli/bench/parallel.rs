//! `tlite bench --parallel`.

use super::measure::{median, random_tokens, repeated};
use crate::cli::interrupt::lock;
use crate::cli::output::titled;
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::{Barrier, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::llm::{BatchSequence, Cancel, LanguageModel, StepRunner};
use transformer_lite::unstable::{num, quota};

/// Lengths of a test, in tokens of each sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lengths {
    pub prefill: usize,
    pub decode: usize,
}

/// A test with several sequences. Speeds are medians of the runs, over all sequences.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct ParallelLine {
    /// Number of sequences.
    pub(super) sequences: usize,
    /// Prompt tokens of each.
    pub(super) prefill: usize,
    /// Decoded tokens of each.
    pub(super) decode: usize,
    /// Prompt tokens per second, until all sequences have their first token.
    pub(super) prefill_tokens_per_s: f64,
    /// Decoded tokens per second after that.
    pub(super) decode_tokens_per_s: f64,
    /// Prompt and decoded tokens per second.
    pub(super) tokens_per_s: f64,
    /// Milliseconds of a step in which each sequence decodes one token.
    pub(super) step_ms: f64,
}

/// Seconds of both phases.
type Run = [f64; 2];

impl ParallelLine {
    fn new(sequences: usize, lengths: Lengths, runs: &[Run]) -> Option<Self> {
        let Lengths { prefill, decode } = lengths;
        let of = |time: fn(&Run) -> f64| {
            let mut times: Vec<f64> = runs.iter().map(time).collect();
            median(&mut times)
        };
        let speed = |tokens: usize, seconds: f64| {
            let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            rate(tokens * sequences, time.max(Duration::from_nanos(1))).unwrap_or(0.0)
        };
        let (first, rest, all) = (of(|r| r[0])?, of(|r| r[1])?, of(|r| r[0] + r[1])?);
        Some(Self {
            sequences,
            prefill,
            decode,
            prefill_tokens_per_s: speed(prefill, first),
            decode_tokens_per_s: speed(decode, rest),
            tokens_per_s: speed(prefill + decode, all),
            step_ms: rest / decode.max(1) as f64 * 1e3,
        })
    }
}

/// Titles and cells of the table.
pub(super) fn rows(lines: &[ParallelLine]) -> Vec<Vec<String>> {
    titled(
        lines,
        &[
            ("sequences", &|l| l.sequences.to_string()),
            ("prefill", &|l| l.prefill.to_string()),
            ("decode", &|l| l.decode.to_string()),
            ("pp tokens/s", &|l| format!("{:.2}", l.prefill_tokens_per_s)),
            ("tg tokens/s", &|l| format!("{:.2}", l.decode_tokens_per_s)),
            ("tokens/s", &|l| format!("{:.2}", l.tokens_per_s)),
            ("step ms", &|l| format!("{:.2}", l.step_ms)),
        ],
    )
}

/// Where the threads of a run wait for one another.
struct Gate {
    /// Whether the run begins; `None` until that is known.
    open: Mutex<Option<bool>>,
    changed: Condvar,
    /// All sequences have their first token.
    first: Barrier,
}

impl Gate {
    fn set(&self, begins: bool) {
        *lock(&self.open) = Some(begins);
        self.changed.notify_all();
    }

    /// Waits until it is known whether the run begins.
    fn wait(&self) -> bool {
        let open = self.changed.wait_while(lock(&self.open), |open| open.is_none());
        open.unwrap_or_else(PoisonError::into_inner).unwrap_or(false)
    }
}

/// One sequence of a run: a prompt, then tokens one by one. Returns the start and the end of each
/// phase; `None` if it was cancelled.
fn sequence(
    model: &mut BatchSequence,
    prompt: &[u32],
    decode: usize,
    gate: &Gate,
    cancel: &Cancel,
) -> Result<Option<[Instant; 3]>> {
    if !gate.wait() {
        return Ok(None);
    }
    let _cancellable = quota::cancellable(cancel);
    let start = Instant::now();
    let first = model.most_likely(prompt);
    // Also after an error, lest others wait.
    gate.first.wait();
    let middle = Instant::now();
    let rest = || {
        let mut token = first?;
        for _ in 0..decode {
            token = model.most_likely(&[token])?;
        }
        Ok(())
    };
    match rest() {
        Err(Error::Interrupted) if cancel.is_cancelled() => Ok(None),
        Err(e) => Err(e),
        Ok(()) => Ok(Some([start, middle, Instant::now()])),
    }
}

/// One run of `sequences` sequences; `None` if it was cancelled.
fn run(
    steps: &StepRunner,
    sequences: usize,
    lengths: Lengths,
    seed: u64,
    cancel: &Cancel,
) -> Result<Option<Run>> {
    let mut random = SplitMix64::new(seed);
    let gate = Gate {
        open: Mutex::new(None),
        changed: Condvar::new(),
        first: Barrier::new(sequences),
    };
    let mut models: Vec<BatchSequence> = (0..sequences).map(|_| steps.sequence()).collect();
    let mut prompts = Vec::new();
    for model in &models {
        let vocab = num::wide(model.vocab()).max(1);
        prompts.push(random_tokens(&mut random, lengths.prefill, vocab)?);
    }
    let results: Result<Vec<Result<Option<[Instant; 3]>>>> = std::thread::scope(|scope| {
        let gate = &gate;
        let threads: std::io::Result<Vec<_>> = (models.iter_mut().zip(&prompts))
            .map(|(model, prompt)| {
                let work = move || sequence(model, prompt, lengths.decode, gate, cancel);
                std::thread::Builder::new().spawn_scoped(scope, work)
            })
            .collect();
        gate.set(threads.is_ok());
        let lost = || Err(Error::internal(Stage::Run, "a thread of a test panicked"));
        let threads = threads.map_err(|e| Error::caused(Stage::Run, "cannot start a thread", e))?;
        let results = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost()));
        Ok(results.collect())
    });
    let times = results?.into_iter().collect::<Result<Option<Vec<_>>>>()?;
    let Some(times) = times else {
        return Ok(None);
    };
    let earliest = |i: usize| times.iter().filter_map(|t| t.get(i)).min();
    let last = times.iter().filter_map(|t| t.last()).max();
    Ok(match (earliest(0), earliest(1), last) {
        (Some(start), Some(middle), Some(end)) => {
            Some([*middle - *start, *end - *middle].map(|t| t.as_secs_f64()))
        }
        _ => None,
    })
}

/// Runs the tests until `cancel` is set, each once to warm up and then `repeat` times. `step` is
/// called before each run.
pub(super) fn bench(
    steps: &StepRunner,
    sequences: &[NonZeroUsize],
    lengths: Lengths,
    repeat: NonZeroUsize,
    cancel: &Cancel,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<ParallelLine>> {
    let mut lines = Vec::new();
    for count in sequences.iter().map(|n| n.get()) {
        let runs = repeated(repeat, |i| {
            step(&format!("{count} sequences"));
            // New prompts in each run, since known prefixes are not computed again.
            let seed = (num::wide(count) << 32) | num::wide(i);
            run(steps, count, lengths, seed, cancel)
        })?;
        lines.extend(ParallelLine::new(count, lengths, &runs));
        if cancel.is_cancelled() {
            break;
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_those_of_all_sequences() {
        let lengths = Lengths {
            prefill: 10,
            decode: 20,
        };
        let line = ParallelLine::new(4, lengths, &[[1.0, 4.0], [0.5, 2.0], [2.0, 8.0]]).unwrap();
        assert_eq!(line.prefill_tokens_per_s, 40.0);
        assert_eq!((line.decode_tokens_per_s, line.tokens_per_s), (20.0, 24.0));
        assert_eq!(line.step_ms, 200.0);
        let cells = rows(&[line]);
        assert_eq!(cells[0].len(), cells[1].len());
        assert_eq!(cells[1], ["4", "10", "20", "40.00", "20.00", "24.00", "200.00"]);
        assert!(ParallelLine::new(4, lengths, &[]).is_none());
    }
}
