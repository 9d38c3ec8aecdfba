//! `tlite bench`.

use super::interrupt::Interrupt;
use super::load::{load_model, print_notes};
use super::options::{ExecOptions, Verbosity, check_fits, from_one, from_zero};
use super::output::{bar, note, put, put_json, table, text_output};
use super::random::RandomOptions;
use crate::inspect::model_name;
use crate::roofline::Work;
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::time::Instant;
use transformer_lite::unstable::backend::Stats;
use transformer_lite::unstable::error::{Error, Result};
use transformer_lite::unstable::llm::load::{LoadOptions, Loaded, PlaceName, Purpose, Used};
use transformer_lite::unstable::llm::metrics::rate;
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::llm::{Cancel, LanguageModel, ModelFolder};
use transformer_lite::unstable::probe::{Probe, store};

/// Default prompt lengths.
const PREFILL: [usize; 2] = [128, 512];
/// Default numbers of tokens to decode.
const DECODE: [usize; 1] = [64];

const EXAMPLES: &str = "\
Examples:
  tlite bench MODEL
  tlite bench MODEL --prefill 512 --decode 128 --depth 0,1024
  tlite bench --random smollm2-135m --json";

const COLUMNS: &str = "\
Columns:
  test      ppN: prefill of N tokens; tgN@D: decoding of N tokens after D others
  tokens/s  median of the runs; min and max are the slowest and the fastest run
  limit     tokens/s at the device's limits, if `tlite devices --probe` has measured them
  share     tokens/s as a share of the limit
  host      host time per token in microseconds, without time in the OpenCL driver
  recorded  share of submissions that replayed a recording

";

/// Measure the speed of a model
///
/// Test ppN feeds a prompt of N tokens into an empty context. Test tgN decodes N tokens one by one,
/// starting with an empty context; tgN@D starts after D tokens. Each test runs once to warm up,
/// then --repeat times. After Ctrl-C, the results so far are shown and the exit code is 130.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tlite bench [OPTIONS] MODEL\n       tlite bench [OPTIONS] --random NAME",
    after_help = EXAMPLES,
    after_long_help = format!("{COLUMNS}{EXAMPLES}")
)]
pub struct Args {
    #[command(flatten)]
    model: RandomOptions,
    /// Prompt lengths [default: 128,512, limited by the context]
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        value_parser = from_one,
        allow_negative_numbers = true
    )]
    prefill: Vec<NonZeroUsize>,
    /// Numbers of tokens to decode [default: 64, limited by the context]
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        value_parser = from_one,
        allow_negative_numbers = true
    )]
    decode: Vec<NonZeroUsize>,
    /// Numbers of tokens in the cache before decoding
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "0",
        value_parser = from_zero::<usize>,
        allow_negative_numbers = true
    )]
    depth: Vec<usize>,
    /// Measured runs of each test
    #[arg(long, value_name = "N", default_value = "5", value_parser = from_one, allow_negative_numbers = true)]
    repeat: NonZeroUsize,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

/// One kind of measurement with its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
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

    fn name(self) -> String {
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
pub(super) struct Line {
    /// The test: `pp128`, `tg64`, `tg64@1024`.
    test: String,
    /// Prompt tokens per second, median of the runs; only for prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_tokens_per_s: Option<f64>,
    /// Decoded tokens per second, median of the runs; only for decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tokens_per_s: Option<f64>,
    /// Tokens per second of the slowest run.
    min: f64,
    /// Tokens per second of the fastest run.
    max: f64,
    /// Tokens per second at the device's limits; only if the device has been measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    most_tokens_per_s: Option<f64>,
    /// The median as a share of that, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_most: Option<f64>,
    /// Median microseconds per token on the host, outside the driver; only if the backend measures
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    host_us_per_token: Option<f64>,
    /// Kernel launches per prompt, or per decoded token; only on a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    launches: Option<f64>,
    /// Share of submissions that replayed a recording of the driver, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<f64>,
}

/// Figures of one run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Tokens per second.
    speed: f64,
    host_us: Option<f64>,
    submits: u64,
    recorded: u64,
    launches: u64,
}

impl Line {
    fn median(&self) -> f64 {
        self.prefill_tokens_per_s
            .or(self.decode_tokens_per_s)
            .unwrap_or(f64::NAN)
    }
}

/// The object of `tlite bench --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Report<'a> {
    /// Backend: `opencl`, `wgpu` or `host`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    #[serde(flatten)]
    used: Used,
    /// The tests.
    results: &'a [Line],
    /// Milliseconds of device time of the longest slice; only if work is sliced (`--slice-ms`).
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_slice_ms: Option<f64>,
    /// Ctrl-C ended the tests early.
    interrupted: bool,
}

/// The numbers that are `asked` for, else the `usual` ones, limited to `room`. `notes` tells of
/// limits.
fn lengths(
    option: &str,
    asked: &[NonZeroUsize],
    usual: &[usize],
    room: usize,
    notes: &mut Vec<String>,
) -> Vec<usize> {
    if !asked.is_empty() {
        return asked.iter().map(|n| n.get()).collect();
    }
    let mut lengths: Vec<usize> = Vec::new();
    for &wanted in usual {
        let length = wanted.min(room);
        if length < wanted {
            notes.push(format!(
                "{option}: {length} tokens instead of {wanted}; the context has no room for more"
            ));
        }
        if length > 0 && !lengths.contains(&length) {
            lengths.push(length);
        }
    }
    lengths
}

/// The tests for a context of so many tokens, and notes. A usage error for a depth that leaves no
/// room.
fn tests(args: &Args, context: usize) -> Result<(Vec<Test>, Vec<String>)> {
    let mut notes = Vec::new();
    let prefill = lengths("--prefill", &args.prefill, &PREFILL, context, &mut notes);
    let deepest = args.depth.iter().copied().max().unwrap_or(0);
    check_fits("--depth", deepest.saturating_add(1), context)?;
    let decode = lengths("--decode", &args.decode, &DECODE, context - deepest, &mut notes);
    let decode = decode
        .iter()
        .flat_map(|n| args.depth.iter().map(|d| Test::Decode(*n, *d)));
    Ok((
        prefill.into_iter().map(Test::Prefill).chain(decode).collect(),
        notes,
    ))
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
    if cancel.is_cancelled() {
        return Ok(None);
    }
    // A clock too coarse to see the run gives no finite speed; one nanosecond bounds it.
    let speed = rate(tokens.len(), time.max(std::time::Duration::from_nanos(1)));
    let last = stats().unwrap_or_default();
    let driver = std::time::Duration::from_nanos(last.driver_ns - first.driver_ns);
    let host = time.saturating_sub(driver).as_secs_f64() * 1e6 / tokens.len().max(1) as f64;
    Ok(Some(Run {
        speed: speed.unwrap_or(0.0),
        host_us: (!driver.is_zero()).then_some(host),
        submits: last.submits - first.submits,
        recorded: last.recorded_submits - first.recorded_submits,
        launches: last.launches - first.launches,
    }))
}

/// The median of sorted `values`.
fn median(values: &[f64]) -> Option<f64> {
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(match values.len() % 2 {
        0 => (values.get(middle.checked_sub(1)?)? + upper) / 2.0,
        _ => upper,
    })
}

fn line(test: Test, runs: &[Run]) -> Option<Line> {
    let mut speeds: Vec<f64> = runs.iter().map(|r| r.speed).collect();
    let mut host: Vec<f64> = runs.iter().filter_map(|r| r.host_us).collect();
    speeds.sort_by(f64::total_cmp);
    host.sort_by(f64::total_cmp);
    let sum = |of: fn(&Run) -> u64| runs.iter().map(of).sum::<u64>();
    let (submits, recorded, launches) = (sum(|r| r.submits), sum(|r| r.recorded), sum(|r| r.launches));
    let parts = match test {
        Test::Prefill(_) => runs.len(),
        Test::Decode(n, _) => n * runs.len(),
    };
    let median = median(&speeds)?;
    Some(Line {
        host_us_per_token: self::median(&host),
        launches: (launches > 0).then(|| launches as f64 / parts.max(1) as f64),
        recorded: (recorded > 0).then(|| recorded as f64 / submits.max(1) as f64),
        test: test.name(),
        prefill_tokens_per_s: matches!(test, Test::Prefill(_)).then_some(median),
        decode_tokens_per_s: matches!(test, Test::Decode(..)).then_some(median),
        min: *speeds.first()?,
        max: *speeds.last()?,
        most_tokens_per_s: None,
        share_of_most: None,
    })
}

/// Runs all tests until `cancel` is set, and returns the results. `step` is called with the name of
/// each run before it starts. Usage errors, before anything runs, for tests that do not fit the
/// context.
fn bench(
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
    let vocab = u64::try_from(model.vocab()).unwrap_or(u64::MAX);
    if vocab == 0 {
        return Err(Error::other(
            transformer_lite::unstable::error::Stage::Run,
            "the model has no tokens",
        ));
    }
    let mut lines = Vec::new();
    for &test in tests {
        if cancel.is_cancelled() {
            break;
        }
        let mut random = SplitMix64::new(0);
        let tokens: Vec<u32> = (0..test.depth() + test.tokens())
            .map(|_| u32::try_from(random.next_u64() % vocab).unwrap_or(0))
            .collect();
        let mut runs = Vec::new();
        model.truncate(0);
        for run in 0..=repeat.get() {
            step(&test.name());
            match measure(model, stats, test, &tokens, cancel)? {
                None => break,
                Some(measured) if run > 0 => runs.push(measured),
                Some(_) => {}
            }
        }
        lines.extend(line(test, &runs));
    }
    model.truncate(0);
    Ok(lines)
}

/// Compares `lines` with the device's limits ([`crate::roofline`]), from its stored probe and the
/// launches that were counted. Decoding is compared at its middle token.
fn compare(lines: &mut [Line], tests: &[Test], loaded: &Loaded, probe: &Probe) -> Result<()> {
    let peaks = probe.peaks();
    for line in lines {
        let Some(test) = tests.iter().find(|t| t.name() == line.test) else {
            continue;
        };
        let costs = match *test {
            Test::Prefill(n) => loaded.costs(n, 0)?,
            Test::Decode(n, depth) => loaded.costs(1, depth + n / 2)?,
        };
        let Some(costs) = costs else { continue };
        let tokens = if matches!(test, Test::Prefill(_)) {
            test.tokens()
        } else {
            1
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

fn text(name: &str, place: &PlaceName, used: &Used, lines: &[Line]) -> String {
    let compared = lines.iter().any(|l| l.most_tokens_per_s.is_some());
    let mut titles = vec!["test", "tokens/s", "min", "max"];
    if compared {
        titles.extend(["limit", "share"]);
    }
    let mut rows = vec![titles.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(lines.iter().map(|l| {
        let speeds = [l.median(), l.min, l.max].map(|s| format!("{s:.2}"));
        let most = l.most_tokens_per_s.map(|s| format!("{s:.2}"));
        let share = l.share_of_most.map(|s| format!("{:.1} %", 100.0 * s));
        let most = [most, share].map(Option::unwrap_or_default);
        let most = most.into_iter().filter(|_| compared);
        std::iter::once(l.test.clone())
            .chain(speeds)
            .chain(most)
            .collect::<Vec<_>>()
    }));
    if lines.iter().any(|l| l.host_us_per_token.is_some()) {
        let cell = |l: &Line| {
            l.host_us_per_token
                .map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"))
        };
        let column = std::iter::once("host µs/token".to_owned()).chain(lines.iter().map(cell));
        rows.iter_mut().zip(column).for_each(|(row, cell)| row.push(cell));
    }
    if lines.iter().any(|l| l.recorded.is_some()) {
        let cell = |l: &Line| format!("{:.0} %", 100.0 * l.recorded.unwrap_or(0.0));
        let column = std::iter::once("recorded".to_owned()).chain(lines.iter().map(cell));
        rows.iter_mut().zip(column).for_each(|(row, cell)| row.push(cell));
    }
    let PlaceName { backend, device, .. } = place;
    let int8 = if used.act == "int8" {
        ", int8 activations"
    } else {
        ""
    };
    format!("{name} on {device} ({backend}{int8})\n{}", table(&rows, 1))
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let source = args.model.source(interrupt)?;
    let folder = ModelFolder::holding("MODEL", source.path(), &[])?;
    let options = LoadOptions {
        weights: source.weights,
        ..args.exec.load_options()
    };
    let mut loaded = load_model(&folder, &options, Purpose::Generation)?;

    let (tests, notes) = tests(args, loaded.model.context())?;
    print_notes(&notes);
    let progress = bar(tests.len().saturating_mul(args.repeat.get().saturating_add(1)));
    let generating = interrupt.generating();
    let cancel = generating.flag();
    let device = &loaded.all;
    let stats = || device.stats();
    let lines = bench(
        loaded.model.as_mut(),
        &stats,
        &tests,
        args.repeat,
        &cancel,
        &mut |name| {
            progress.set_message(name.to_owned());
            progress.inc(1);
        },
    );
    progress.finish_and_clear();
    let mut lines = lines?;
    drop(generating);
    if let Some(caps) = loaded.all.caps() {
        let kept = args.exec.on.cache.probes();
        match kept.and_then(|kept| store::load(&kept, caps)) {
            Some(probe) => compare(&mut lines, &tests, &loaded.all, &probe)?,
            None => note(
                &mut std::io::stderr(),
                "run `tlite devices --probe` once to see how close these speeds are to the device's limit",
            ),
        }
    }
    let interrupted = cancel.is_cancelled();
    let end = if interrupted {
        Err(Error::Interrupted)
    } else {
        Ok(())
    };
    if lines.is_empty() && interrupted {
        note(&mut std::io::stderr(), "interrupted before a run was measured");
        return end;
    }

    let ms = |ns: u64| (ns > 0).then(|| std::time::Duration::from_nanos(ns).as_secs_f64() * 1e3);
    let longest_slice_ms = stats().and_then(|s| ms(s.longest_slice_ns));
    let mut out = text_output();
    if args.json {
        let PlaceName {
            backend,
            device,
            driver,
        } = &loaded.place;
        put_json(
            &mut out,
            &Report {
                backend,
                device,
                driver,
                used: loaded.all.used()?,
                results: &lines,
                longest_slice_ms,
                interrupted,
            },
        )?;
    } else {
        put(
            &mut out,
            &text(
                &model_name(source.path())?,
                &loaded.place,
                &loaded.all.used()?,
                &lines,
            ),
        )?;
        if let Some(ms) = longest_slice_ms {
            put(&mut out, &format!("longest slice {ms:.1} ms\n"))?;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches};
    use tlite_testing::llm::testing::FakeModel;

    fn model(context: usize) -> FakeModel {
        FakeModel::new(10, context, |cache| *cache.last().unwrap())
    }

    #[test]
    fn usual_lengths_are_cut_and_others_are_not() {
        let tests = |more: &[&str], context| {
            let line = [&["bench", "m"], more].concat();
            let command = Args::augment_args(clap::Command::new("bench"));
            let args = Args::from_arg_matches(&command.get_matches_from(line)).unwrap();
            tests(&args, context)
                .map(|(tests, notes)| (tests.into_iter().map(Test::name).collect::<Vec<_>>(), notes.len()))
        };
        let names =
            |names: &[&str], notes| (names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>(), notes);
        assert_eq!(tests(&[], 4096).unwrap(), names(&["pp128", "pp512", "tg64"], 0));
        assert_eq!(tests(&[], 256).unwrap(), names(&["pp128", "pp256", "tg64"], 1));
        assert_eq!(tests(&[], 32).unwrap(), names(&["pp32", "tg32"], 3));
        let deep = tests(&["--depth", "0,200"], 256).unwrap();
        assert_eq!(deep, names(&["pp128", "pp256", "tg56", "tg56@200"], 2));
        let asked = tests(&["--prefill", "512", "--decode", "8"], 256).unwrap();
        assert_eq!(asked, names(&["pp512", "tg8"], 0), "which is then refused");
        let e = tests(&["--depth", "256"], 256).unwrap_err();
        assert!(
            e.is_usage() && e.to_string().starts_with("--depth: 257 tokens"),
            "{e}"
        );
    }

    const TESTS: [Test; 3] = [Test::Prefill(6), Test::Decode(3, 0), Test::Decode(2, 4)];

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

    fn runs(speeds: &[f64]) -> Vec<Run> {
        let run = |speed: &f64| Run {
            speed: *speed,
            host_us: None,
            submits: 0,
            recorded: 0,
            launches: 0,
        };
        speeds.iter().map(run).collect()
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

    /// The cells of the table for `lines`, and its first line.
    fn cells(lines: &[Line]) -> (String, Vec<Vec<String>>) {
        let place = PlaceName {
            backend: "opencl",
            device: "Card".to_owned(),
            driver: "d".to_owned(),
        };
        let used = Used {
            act: "float",
            kv: None,
            recording: None,
        };
        let text = text("m", &place, &used, lines);
        let mut all = text.lines();
        let head = all.next().unwrap().to_owned();
        let cells = |l: &str| {
            l.split("  ")
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect()
        };
        (head, all.map(cells).collect())
    }

    #[test]
    fn the_table_has_a_row_for_each_test() {
        let lines = [
            line(Test::Prefill(128), &runs(&[1000.0])).unwrap(),
            line(Test::Decode(8, 0), &runs(&[9.5])).unwrap(),
        ];
        let (head, rows) = cells(&lines);
        assert!(["m", "Card", "opencl"].iter().all(|n| head.contains(n)), "{head}");
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1], ["pp128", "1000.00", "1000.00", "1000.00"]);
        assert_eq!(rows[2], ["tg8", "9.50", "9.50", "9.50"]);
    }

    #[test]
    fn figures_of_a_backend_have_columns() {
        let run = |host_us, recorded| Run {
            speed: 9.5,
            host_us: Some(host_us),
            submits: 4,
            recorded,
            launches: 80,
        };
        let lines = [
            line(Test::Prefill(128), &runs(&[1000.0])).unwrap(),
            line(Test::Decode(8, 0), &[run(20.0, 4), run(30.0, 2), run(90.0, 3)]).unwrap(),
        ];
        let (_, rows) = cells(&lines);
        assert_eq!(rows[1][4..], ["-", "0 %"]);
        assert_eq!(rows[2][4..], ["30.0", "75 %"]);
        // 80 in each of three runs of 8 tokens.
        assert_eq!((lines[0].launches, lines[1].launches), (None, Some(10.0)));
    }
}
