//! `tlite bench`.

mod measure;
mod parallel;
mod speculation;

use super::draft::DraftOptions;
use super::interrupt::Interrupt;
use super::load::{load_model, print_notes, waiting};
use super::measuring::{ended, ended_before, int8_text, interruptible, stepper};
use super::options::{ExecOptions, Verbosity, check_fits, from_one, from_zero};
use super::output::{Column, note, print_report, table, titled};
use super::random::RandomOptions;
use crate::inspect::model_name;
use crate::roofline::measured::{EXCEEDED_HELP, limit_text};
use measure::{Line, Test, bench, compare};
use parallel::{Lengths, ParallelLine};
use schemars::JsonSchema;
use serde::Serialize;
use speculation::DraftLine;
use std::num::NonZeroUsize;
use std::time::Duration;
use transformer_lite::unstable::error::{Error, ErrorKind, Result, Stage};
use transformer_lite::unstable::graph::op::paged_attention::PAGE;
use transformer_lite::unstable::llm::load::{
    BatchOptions, LoadOptions, LoadedRows, PlaceName, Purpose, Used,
};
use transformer_lite::unstable::llm::{Codec, ModelFolder, Speculation, StepRunner};
use transformer_lite::unstable::probe::store;

const PREFILL: [usize; 2] = [128, 512];
/// Default number of prompt tokens and of decoded tokens with `--parallel`.
const PARALLEL: usize = 128;
/// Default number of decoded tokens of each answer with a draft.
const ANSWER: usize = 256;
/// Default numbers of tokens to decode.
const DECODE: [usize; 1] = [64];

const EXAMPLES: &str = "\
Examples:
  tlite bench MODEL --prefill 512 --decode 128 --depth 0,1024
  tlite bench MODEL --parallel 1,8,32
  tlite bench MODEL --draft ngram --repeat 2";

const COLUMNS: &str = "\
Columns:
  test      ppN: prefill of N tokens; tgN@D: decoding of N tokens after D others
  tokens/s  median of the runs; min and max are the slowest and the fastest run
  limit     tokens/s at the device's limits, if `tlite devices --probe` has measured them
  share     tokens/s as a share of the limit
  host      host time per token in microseconds, without time in the OpenCL driver
  recorded  share of submissions that replayed a recording

Columns with --parallel:
  pp tokens/s  prompt tokens of all sequences, until each has its first token
  tg tokens/s  decoded tokens of all sequences after that
  tokens/s     prompt and decoded tokens of all sequences, over the whole test
  step ms      time of a step in which each sequence decodes one token

Columns with --draft or --draft-model:
  tokens        decoded tokens of one run over all prompts of a kind
  plain, draft  decoded tokens/s without and with drafts
  ratio, worst  draft over plain: for all prompts, and for the prompt where it is lowest
  drafted       tokens that the draft proposed; accepted is the share that the model kept
  different     answers that differ from those without drafts, after a near-tie of two tokens

";

/// Measure the speed of a model
///
/// Test ppN feeds a prompt of N tokens into an empty context. Test tgN decodes N tokens one by one,
/// starting with an empty context; tgN@D starts after D tokens. With --parallel, several sequences
/// share each forward pass. With --draft or --draft-model, built-in prompts are answered with
/// and without drafts; the first value of --decode limits each answer (default: 256 tokens). Each
/// test runs once to warm up, then --repeat times. After Ctrl-C, the results so far are shown and
/// the exit code is 130.
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
        conflicts_with_all = ["draft", "draft_model"]
    )]
    prefill: Vec<NonZeroUsize>,
    /// Numbers of tokens to decode [default: 64, limited by the context]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = from_one)]
    decode: Vec<NonZeroUsize>,
    /// Numbers of tokens in the cache before decoding
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "0",
        value_parser = from_zero::<usize>,
        conflicts_with_all = ["draft", "draft_model"]
    )]
    depth: Vec<usize>,
    /// Decode N sequences at once; takes the first --prefill and --decode [default: 128 each]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = from_one, conflicts_with_all = ["depth", "draft", "draft_model"])]
    parallel: Vec<NonZeroUsize>,
    /// With --parallel: each sequence gets exactly the tokens it would get alone (slower on GPUs)
    #[arg(long, requires = "parallel")]
    reproducible: bool,
    #[command(flatten)]
    drafts: DraftOptions,
    /// Measured runs of each test
    #[arg(long, value_name = "N", default_value = "5", value_parser = from_one)]
    repeat: NonZeroUsize,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

/// The object of `tlite bench --json`.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct Report<'a> {
    /// Backend: `opencl`, `wgpu`, `cpu` or `reference`.
    backend: &'a str,
    /// Name of the device.
    device: &'a str,
    /// Name and version of its driver.
    driver: &'a str,
    #[serde(flatten)]
    used: Option<Used>,
    /// The tests.
    results: &'a [Line],
    /// The tests of `--parallel`; only with it, instead of `act`, `kv` and `recording`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    parallel: &'a [ParallelLine],
    /// The tests of `--draft` and `--draft-model`.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    draft: &'a [DraftLine],
    /// Milliseconds of device time of the longest slice; only if work is sliced (`--slice-ms`).
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_slice_ms: Option<f64>,
    /// Ctrl-C ended the tests early.
    interrupted: bool,
}

impl<'a> Report<'a> {
    /// A report without lines.
    fn of(place: &'a PlaceName, used: Option<Used>) -> Self {
        Self {
            backend: place.backend,
            device: &place.device,
            driver: &place.driver,
            used,
            ..Self::default()
        }
    }
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
                "{option}: limited to {length} of {wanted} tokens by the context"
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

/// Titles and cells of the table of tests.
fn rows(lines: &[Line]) -> Vec<Vec<String>> {
    let number = |n: Option<f64>| n.map(|n| format!("{n:.2}")).unwrap_or_default();
    let compared = lines.iter().any(|l| l.most_tokens_per_s.is_some());
    let timed = lines.iter().any(|l| l.host_us_per_token.is_some());
    let recorded = lines.iter().any(|l| l.recorded.is_some());
    let columns: [(bool, Column<'_, Line>); 8] = [
        (true, ("test", &|l| l.test.clone())),
        (true, ("tokens/s", &|l| format!("{:.2}", l.median()))),
        (true, ("min", &|l| format!("{:.2}", l.min))),
        (true, ("max", &|l| format!("{:.2}", l.max))),
        (compared, ("limit", &|l| number(l.most_tokens_per_s))),
        (
            compared,
            ("share", &|l| l.share_of_most.map(limit_text).unwrap_or_default()),
        ),
        (
            timed,
            ("host µs/token", &|l| {
                l.host_us_per_token
                    .map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"))
            }),
        ),
        (
            recorded,
            ("recorded", &|l| {
                format!("{:.0} %", 100.0 * l.recorded.unwrap_or(0.0))
            }),
        ),
    ];
    let shown = columns
        .into_iter()
        .filter(|(shown, _)| *shown)
        .map(|(_, column)| column);
    titled(lines, &shown.collect::<Vec<_>>())
}

/// The report on the model `name` for people, with the table `rows`, of which `left` columns are
/// aligned to the left.
fn text(name: &str, report: &Report<'_>, rows: &[Vec<String>], left: usize) -> String {
    let used = report.used.as_ref().filter(|_| !report.results.is_empty());
    let (device, backend, int8) = (report.device, report.backend, used.map_or("", int8_text));
    let mut out = format!("{name} on {device} ({backend}{int8})\n{}", table(rows, left));
    if let Some(ms) = report.longest_slice_ms {
        out.push_str(&format!("longest slice {ms:.1} ms\n"));
    }
    out
}

/// The runs of a command that repeats each of `tests` after one to warm up.
fn runs(args: &Args, tests: usize) -> usize {
    tests.saturating_mul(args.repeat.get().saturating_add(1))
}

/// Runs the tests and compares them with the device's limits.
fn run_tests(args: &Args, folder: &ModelFolder, options: &LoadOptions, interrupt: &Interrupt) -> Result<()> {
    let mut loaded = load_model(folder, options, Purpose::Generation)?;
    let (tests, notes) = tests(args, loaded.model.context())?;
    print_notes(&notes);
    let device = &loaded.all;
    let (mut lines, interrupted) = interruptible(runs(args, tests.len()), interrupt, |cancel, bar| {
        let (model, stats) = (loaded.model.as_mut(), || device.stats());
        bench(model, &stats, &tests, args.repeat, cancel, &mut stepper(bar))
    })?;
    if let Some(caps) = device.caps() {
        let kept = args.exec.on.cache.probes();
        match kept.and_then(|kept| store::load(&kept, caps)) {
            Some(probe) => {
                compare(&mut lines, &tests, device, &probe)?;
                probe.warning().iter().for_each(|what| note(what));
                if lines.iter().any(|l| l.share_of_most.is_some_and(|s| s > 1.0)) {
                    note(EXCEEDED_HELP);
                }
            }
            None => note(
                "run `tlite devices --probe` once (with --threads or --cpu-isa: `tlite roofline` with these) to see how close these speeds are to the device's limit",
            ),
        }
    }
    let longest = device.stats().map_or(0, |s| s.longest_slice_ns);
    let report = Report {
        results: &lines,
        longest_slice_ms: (longest > 0).then(|| Duration::from_nanos(longest).as_secs_f64() * 1e3),
        interrupted,
        ..Report::of(&loaded.place, Some(device.used()?))
    };
    print(args, folder, &report, &rows(&lines), 1)
}

/// Measures several sequences at the same time.
fn run_parallel(
    args: &Args,
    folder: &ModelFolder,
    mut options: LoadOptions,
    interrupt: &Interrupt,
) -> Result<()> {
    let first = |asked: &[NonZeroUsize]| asked.first().map_or(PARALLEL, |n| n.get());
    let lengths = Lengths {
        prefill: first(&args.prefill),
        decode: first(&args.decode),
    };
    let tokens = lengths.prefill.saturating_add(lengths.decode);
    let context = folder.context(options.context)?;
    check_fits("--decode", tokens, context)?;
    // No more memory than the test needs.
    let cached = options.context.unwrap_or(tokens);
    options.context = Some(cached);
    options.greedy = true;
    let most = args.parallel.iter().map(|n| n.get()).max().unwrap_or(1);
    let batch = BatchOptions {
        sequences: most,
        // A smaller cache would measure tokens that are fed again.
        tokens: Some(most.saturating_mul(tokens.next_multiple_of(PAGE)).max(cached)),
        reproducible: args.reproducible,
        ..BatchOptions::default()
    };
    let LoadedRows { model, place, notes } =
        LoadedRows::new(folder, &options, &batch).map_err(|e| match e.kind() {
            ErrorKind::Unsupported | ErrorKind::OutOfMemory => {
                let what = match &e {
                    Error::Usage { what, .. } | Error::Other { what, .. } => what.clone(),
                    _ => e.chain(),
                };
                Error::usage("parallel", what).of_kind(e.kind())
            }
            _ => e,
        })?;
    print_notes(&notes);
    let steps = StepRunner::start(model)?;
    let runs = runs(args, args.parallel.len());
    let (lines, interrupted) = interruptible(runs, interrupt, |cancel, bar| {
        let step = &mut stepper(bar);
        parallel::bench(&steps, &args.parallel, lengths, args.repeat, cancel, step)
    })?;
    let report = Report {
        parallel: &lines,
        interrupted,
        ..Report::of(&place, None)
    };
    print(args, folder, &report, &parallel::rows(&lines), 0)
}

/// Measures decoding with drafts.
fn run_drafts(
    args: &Args,
    folder: &ModelFolder,
    mut options: LoadOptions,
    interrupt: &Interrupt,
) -> Result<()> {
    let codec = Codec::load(folder.clone())?;
    let sets = speculation::prompts(&codec)?;
    let (count, longest) = speculation::extent(&sets);
    let tokens = args.decode.first().map_or(ANSWER, |n| n.get());
    if tokens < 2 {
        let what = "1 is too small with a draft; the first token of an answer is not decoded";
        return Err(Error::usage("--decode", what));
    }
    let needed = longest.saturating_add(tokens);
    check_fits("--decode", needed, folder.context(options.context)?)?;
    // No more memory than the test needs.
    options.context = options.context.or(Some(needed));
    (options.drafts, options.greedy) = (args.drafts.most(), true);
    let mut loaded = load_model(folder, &options, Purpose::Generation)?;
    let exec = &args.exec;
    let (draft, _) = waiting(folder, |on_progress| {
        args.drafts.load(exec, codec.tokenizer(), on_progress)
    })?;
    let draft = draft.ok_or_else(|| Error::internal(Stage::Run, "a bench of drafts has none"))?;
    let mut drafts = Speculation::adaptive(draft, options.drafts);
    let (lines, interrupted) = interruptible(count, interrupt, |cancel, bar| {
        let (lengths, step) = ((tokens, args.repeat), &mut stepper(bar));
        let model = loaded.model.as_mut();
        speculation::bench(model, &mut drafts, &sets, lengths, &codec, cancel, step)
    })?;
    let report = Report {
        draft: &lines,
        interrupted,
        ..Report::of(&loaded.place, Some(loaded.all.used()?))
    };
    print(args, folder, &report, &speculation::rows(&lines), 1)
}

/// Prints a report as an object, or as the table `rows` with its titles; see [`text`].
fn print(
    args: &Args,
    folder: &ModelFolder,
    report: &Report<'_>,
    rows: &[Vec<String>],
    left: usize,
) -> Result<()> {
    if rows.len() <= 1 && report.interrupted {
        return ended_before("a run was measured");
    }
    let name = model_name(folder.dir())?;
    print_report(args.json, report, || text(&name, report, rows, left))?;
    ended(report.interrupted)
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    args.drafts.check()?;
    let source = args.model.source(interrupt)?;
    let folder = ModelFolder::holding("MODEL", &source.path, &[])?;
    let options = LoadOptions {
        weights: source.weights,
        ..args.exec.load_options()
    };
    if !args.parallel.is_empty() {
        return run_parallel(args, &folder, options, interrupt);
    }
    if args.drafts.most() == 0 {
        return run_tests(args, &folder, &options, interrupt);
    }
    if args.model.is_random() {
        let what = "has no tokenizer, which the prompts for drafts need; name a model instead";
        return Err(Error::usage("--random", what));
    }
    run_drafts(args, &folder, options, interrupt)
}

#[cfg(test)]
mod tests {
    use super::measure::tests::runs;
    use super::measure::{Run, line};
    use super::*;
    use clap::{Args as _, FromArgMatches};

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
        let report = Report {
            results: lines,
            ..Report::of(&place, Some(used))
        };
        let text = text("m", &report, &rows(lines), 1);
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
        let run = |host_us, replayed| Run {
            speed: 9.5,
            host_us: Some(host_us),
            submits: 4,
            replayed,
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
