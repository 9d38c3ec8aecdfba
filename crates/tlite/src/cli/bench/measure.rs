//! The measurements of `tlite bench`.

use crate::cli::options::check_fits;
use crate::roofline::Work;
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};
use transformer_lite::unstable::backend::Stats;
use transformer_lite::unstable::error::{Error, Result, Stage};
use transformer_lite::unstable::llm::load::Loaded;
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::sampler::{SplitMix64, arg_max};
use transformer_lite::unstable::llm::{Cancel, LanguageModel};
use transformer_lite::unstable::num;
use transformer_lite::unstable::probe::Probe;

/// One kind of measurement with its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Prefill(usize),
    /// Number of tokens, and number of tokens before them.
    Decode(usize, usize),
}

impl Test {
    fn tokens(self) -> usize {
        match self {
            Self::Prefill(n) | Self::Decode(n, _) => n,
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Prefill(n) => format!("pp{n}"),
            Self::Decode(n, 0) => format!("tg{n}"),
            Self::Decode(n, depth) => format!("tg{n}@{depth}"),
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Prefill(_) => "--prefill",
            Self::Decode(_, 0) => "--decode",
            Self::Decode(..) => "--depth",
        }
    }

    /// Tokens in the cache before the test.
    fn depth(self) -> usize {
        match self {
            Self::Prefill(_) => 0,
            Self::Decode(_, depth) => depth,
        }
    }
}

/// A test.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(in crate::cli) struct Line {
    /// The test: `pp128`, `tg64`, `tg64@1024`.
    pub(super) test: String,
    /// Prompt tokens per second, median of the runs; only for prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prefill_tokens_per_s: Option<f64>,
    /// Decoded tokens per second, median of the runs; only for decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_s: Option<f64>,
    /// Tokens per second of the slowest run.
    pub(super) min: f64,
    /// Tokens per second of the fastest run.
    pub(super) max: f64,
    /// Tokens per second at the device's limits; only if the device has been measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) most_tokens_per_s: Option<f64>,
    /// The median as a share of that, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share_of_most: Option<f64>,
    /// Median microseconds per token on the host, outside the driver; only if the backend measures
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) host_us_per_token: Option<f64>,
    /// Kernel launches per prompt, or per decoded token; only on a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) launches: Option<f64>,
    /// Share of submissions that replayed a recording of the driver, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recorded: Option<f64>,
}

/// Figures of one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Tokens per second.
    pub speed: f64,
    pub host_us: Option<f64>,
    pub submits: u64,
    pub replayed: u64,
    pub launches: u64,
}

impl Line {
    pub(super) fn median(&self) -> f64 {
        self.prefill_tokens_per_s
            .or(self.decode_tokens_per_s)
            .unwrap_or(f64::NAN)
    }
}

/// One run; `None` if it was cancelled.
fn measure(
    model: &mut dyn LanguageModel,
    stats: &dyn Fn() -> Option<Stats>,
    test: Test,
    tokens: &[u32],
    cancel: &Cancel,
) -> Result<Option<Run>> {
    let mut logits = Vec::new();
    let (before, tokens) = tokens.split_at_checked(test.depth()).unwrap_or((&[], tokens));
    model.truncate(before.len());
    // The tokens before are the same in all runs of a test.
    if let Some(missing) = before.get(model.len()..).filter(|m| !m.is_empty()) {
        model.forward(missing, &mut logits)?;
    }
    let first = stats().unwrap_or_default();
    let start = Instant::now();
    match test {
        Test::Prefill(_) => model.forward(tokens, &mut logits)?,
        Test::Decode(..) => {
            for token in tokens {
                if cancel.is_cancelled() {
                    return Ok(None);
                }
                model.forward(std::slice::from_ref(token), &mut logits)?;
            }
        }
    }
    let time = start.elapsed();
    // The speed of a model that computes no numbers would mislead.
    arg_max(&logits)?;
    if cancel.is_cancelled() {
        return Ok(None);
    }
    // A clock too coarse to see the run gives no finite speed; one nanosecond bounds it.
    let speed = rate(tokens.len(), time.max(Duration::from_nanos(1)));
    let last = stats().unwrap_or_default();
    let driver = Duration::from_nanos(last.driver_ns - first.driver_ns);
    let host = time.saturating_sub(driver).as_secs_f64() * 1e6 / tokens.len().max(1) as f64;
    Ok(Some(Run {
        speed: speed.unwrap_or(0.0),
        host_us: (!driver.is_zero()).then_some(host),
        submits: last.submits - first.submits,
        replayed: last.replayed_submits - first.replayed_submits,
        launches: last.launches - first.launches,
    }))
}

/// The median of `values`, which are sorted then.
pub(super) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(match values.len() % 2 {
        0 => (values.get(middle.checked_sub(1)?)? + upper) / 2.0,
        _ => upper,
    })
}

pub(super) fn line(test: Test, runs: &[Run]) -> Option<Line> {
    let mut speeds: Vec<f64> = runs.iter().map(|r| r.speed).collect();
    let mut host: Vec<f64> = runs.iter().filter_map(|r| r.host_us).collect();
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let (submits, replayed, launches) = (sum(|r| r.submits), sum(|r| r.replayed), sum(|r| r.launches));
    let parts = match test {
        Test::Prefill(_) => runs.len(),
        Test::Decode(n, _) => n * runs.len(),
    };
    let median = median(&mut speeds)?;
    Some(Line {
        host_us_per_token: self::median(&mut host),
        launches: (launches > 0).then(|| launches as f64 / parts.max(1) as f64),
        recorded: (replayed > 0).then(|| replayed as f64 / submits.max(1) as f64),
        test: test.name(),
        prefill_tokens_per_s: matches!(test, Test::Prefill(_)).then_some(median),
        decode_tokens_per_s: matches!(test, Test::Decode(..)).then_some(median),
        min: *speeds.first()?,
        max: *speeds.last()?,
        most_tokens_per_s: None,
        share_of_most: None,
    })
}

/// The results of one run to warm up and `repeat` others, without that of the first; `run` has the
/// number of a run and returns `None` if it was cancelled.
pub(super) fn repeated<T>(
    repeat: NonZeroUsize,
    mut run: impl FnMut(usize) -> Result<Option<T>>,
) -> Result<Vec<T>> {
    let mut results = Vec::new();
    for i in 0..=repeat.get() {
        match run(i)? {
            None => break,
            Some(result) if i > 0 => results.push(result),
            Some(_) => {}
        }
    }
    Ok(results)
}

/// Random tokens of a vocabulary of `vocab` tokens.
pub(super) fn random_tokens(seed: &mut SplitMix64, count: usize, vocab: u64) -> Result<Vec<u32>> {
    let tokens = (0..count).map(|_| num::exact(seed.next_u64() % vocab, "a token"));
    tokens
        .collect::<Result<_, _>>()
        .map_err(|e| Error::internal(Stage::Run, e))
}

/// Runs all tests until `cancel` is set, and returns the results. `step` is called with the name of
/// each run before it starts. Usage errors, before anything runs, for tests that do not fit the
/// context.
pub(super) fn bench(
    model: &mut dyn LanguageModel,
    stats: &dyn Fn() -> Option<Stats>,
    tests: &[Test],
    repeat: NonZeroUsize,
    cancel: &Cancel,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<Line>> {
    for test in tests {
        let tokens = test.depth().saturating_add(test.tokens());
        check_fits(test.option(), tokens, model.context())?;
    }
    let vocab = num::wide(model.vocab());
    if vocab == 0 {
        return Err(Error::other(Stage::Run, "the model has no tokens"));
    }
    let mut lines = Vec::new();
    for &test in tests {
        if cancel.is_cancelled() {
            break;
        }
        let tokens = random_tokens(&mut SplitMix64::new(0), test.depth() + test.tokens(), vocab)?;
        model.truncate(0);
        let runs = repeated(repeat, |_| {
            step(&test.name());
            measure(model, stats, test, &tokens, cancel)
        })?;
        lines.extend(line(test, &runs));
    }
    model.truncate(0);
    Ok(lines)
}

/// Compares `lines` with the device's limits ([`crate::roofline`]), from its stored probe and the
/// launches that were counted. Decoding is compared at its middle token.
pub(super) fn compare(lines: &mut [Line], tests: &[Test], loaded: &Loaded, probe: &Probe) -> Result<()> {
    let peaks = probe.peaks();
    for line in lines {
        let Some(test) = tests.iter().find(|t| t.name() == line.test) else {
            continue;
        };
        let (tokens, past) = match *test {
            Test::Prefill(n) => (n, 0),
            Test::Decode(n, depth) => (1, depth + n / 2),
        };
        let Some(costs) = loaded.costs(tokens, past)? else {
            continue;
        };
        let work = Work::new(line.test.clone(), Some(tokens), &costs, &peaks);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a mean of counts"
        )]
        let launches = line.launches.map_or(work.launches, |n| n.round() as u64);
        line.most_tokens_per_s = work.in_launches(launches).most_tokens_per_s;
        line.share_of_most = line.most_tokens_per_s.map(|most| line.median() / most);
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tlite_testing::llm::testing::FakeModel;

    fn model(context: usize) -> FakeModel {
        FakeModel::new(10, context, |cache| *cache.last().unwrap())
    }

    const TESTS: [Test; 3] = [Test::Prefill(6), Test::Decode(3, 0), Test::Decode(2, 4)];

    pub fn runs(speeds: &[f64]) -> Vec<Run> {
        let run = |speed: &f64| Run {
            speed: *speed,
            host_us: None,
            submits: 0,
            replayed: 0,
            launches: 0,
        };
        speeds.iter().map(run).collect()
    }

    #[test]
    fn every_test_is_warmed_up_and_repeated() {
        let mut model = model(6);
        let mut names = Vec::new();
        let lines = bench(
            &mut model,
            &|| None,
            &TESTS,
            NonZeroUsize::new(2).unwrap(),
            &Cancel::default(),
            &mut |n| {
                names.push(n.to_owned());
            },
        )
        .unwrap();
        let run = |name: &str| vec![name.to_owned(); 3];
        assert_eq!(names, [run("pp6"), run("tg3"), run("tg2@4")].concat());
        let lengths: Vec<usize> = model.calls.iter().map(Vec::len).collect();
        assert_eq!(lengths, [6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1]);
        assert!(model.calls.iter().flatten().all(|id| *id < 10));
        assert!(model.cache.is_empty());
        for l in &lines {
            assert!(
                l.min > 0.0 && l.min <= l.median() && l.median() <= l.max && l.max.is_finite(),
                "{l:?}"
            );
        }
    }

    #[test]
    fn a_cancelled_bench_gives_what_it_has() {
        let mut model = model(6);
        let cancel = Cancel::default();
        let mut runs = 0;
        // The first test is whole, the second ends behind its first measured run.
        let lines = bench(
            &mut model,
            &|| None,
            &TESTS,
            NonZeroUsize::new(2).unwrap(),
            &cancel,
            &mut |_| {
                runs += 1;
                if runs == 6 {
                    cancel.cancel();
                }
            },
        )
        .unwrap();
        let names: Vec<&str> = lines.iter().map(|l| l.test.as_str()).collect();
        assert_eq!((names, runs), (vec!["pp6", "tg3"], 6));
    }

    #[test]
    fn tests_that_do_not_fit_name_their_option() {
        let mut model = model(5);
        let one = NonZeroUsize::MIN;
        let e = bench(
            &mut model,
            &|| None,
            &[Test::Decode(5, 0), Test::Prefill(6)],
            one,
            &Cancel::default(),
            &mut |_| (),
        )
        .unwrap_err();
        assert!(
            e.is_usage() && e.to_string().starts_with("--prefill: 6 tokens"),
            "{e}"
        );
        assert!(model.calls.is_empty());
    }

    #[test]
    fn medians() {
        let l = line(Test::Decode(64, 0), &runs(&[3.0, 1.0, 2.0])).unwrap();
        assert_eq!((l.median(), l.min, l.max), (2.0, 1.0, 3.0));
        let json = serde_json::to_value(&l).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"test": "tg64", "decode_tokens_per_s": 2.0, "min": 1.0, "max": 3.0})
        );
        let l = line(Test::Prefill(8), &runs(&[4.0, 1.0, 2.0, 3.0])).unwrap();
        assert_eq!(serde_json::to_value(&l).unwrap()["prefill_tokens_per_s"], 2.5);
        assert!(line(Test::Prefill(1), &[]).is_none());
    }
}
