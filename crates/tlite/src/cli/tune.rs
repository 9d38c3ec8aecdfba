//! `tlite tune`.

use super::interrupt::{Interrupt, lock};
use super::load::model_folder;
use super::options::{ExecOptions, ModelArg, Verbosity, from_one};
use super::output::{bar, fitted_table, note, print_report, spinner, titled};
use schemars::JsonSchema;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::llm::engine::{Tuner, TuningRow};
use transformer_lite::unstable::llm::load::Loaded;
use transformer_lite::unstable::num;

const EXAMPLES: &str = "\
Examples:
  tlite tune MODEL
  tlite tune MODEL --seconds 300
  tlite tune MODEL --backend opencl --json";

/// Find and save the fastest kernel settings for a model
///
/// Each setting is checked against the reference and timed in turn with the default, in prefill and
/// in decoding. Settings faster by more than measurement noise are saved in the kernel cache for
/// this device, driver and these shapes, and used from then on. Ctrl-C keeps and shows what was
/// found so far; the exit code is then 130. All commands of a timed run are queued at once,
/// regardless of --slice-ms.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tlite tune [OPTIONS] MODEL", after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Time limit in seconds; the first setting is always measured
    #[arg(long, value_name = "N", default_value = "60", value_parser = from_one)]
    seconds: NonZeroUsize,
    /// Measure at most N settings besides the defaults
    ///
    /// Settings chosen earlier come first, then those close to the defaults.
    #[arg(long, value_name = "N", value_parser = from_one)]
    sets: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    verbosity: Verbosity,
    #[command(flatten)]
    exec: ExecOptions,
}

/// The object of `tlite tune --json`.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(super) struct Report {
    /// Name of the model.
    model: String,
    /// Settings that were measured.
    measured: usize,
    /// Settings that there are.
    all: usize,
    /// A faster setting than a default was found and saved.
    kept: bool,
    /// Ctrl-C ended the search early.
    interrupted: bool,
    /// Results by kernel and shape.
    shapes: Vec<TuningRow>,
}

impl Report {
    fn show(&self, json: bool) -> Result<()> {
        if !json && self.shapes.is_empty() {
            return Ok(());
        }
        print_report(json, self, || text(&self.shapes))
    }

    /// One line on the progress: `defaults` and `others` are the times that they took, `limited` is
    /// true if `--sets` was reached.
    fn closing(&self, limited: bool, defaults: Duration, others: Duration) -> String {
        let (measured, all) = (self.measured, self.all);
        let part = format!("{measured} of {all} settings measured");
        match (self.interrupted, measured) {
            (true, _) if self.shapes.is_empty() => "interrupted before the defaults were measured".to_owned(),
            (true, _) => format!("interrupted; {part}"),
            _ if all == 0 => {
                "nothing to tune: no kernel of this model has settings on this device".to_owned()
            }
            (false, _) if measured == all || limited => part,
            (false, _) => {
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let whole =
                    defaults.as_secs_f64() + others.as_secs_f64() * all as f64 / measured.max(1) as f64;
                let seconds = (whole / 10.0).ceil() * 10.0;
                format!("{part}; --seconds {seconds:.0} measures all")
            }
        }
    }
}

fn text(rows: &[TuningRow]) -> String {
    #[expect(clippy::cast_precision_loss, reason = "times of runs")]
    let gain = |r: &TuningRow| r.default_ns as f64 / r.best_ns.max(1) as f64;
    let best = |r: &TuningRow| match (r.best_ns < r.default_ns, r.within_noise) {
        (true, _) => r.best.clone(),
        (false, true) => "- (gains within noise)".to_owned(),
        (false, false) => "-".to_owned(),
    };
    let rows = titled(
        rows,
        &[
            ("kernel", &|r| r.kernel.clone()),
            ("shape", &|r| r.shape.clone()),
            ("default", &|r| r.default.clone()),
            ("best", &best),
            ("tried", &|r| format!("{}/{}", r.tried, r.sets)),
            ("gain", &|r| format!("{:.2}x", gain(r))),
        ],
    );
    fitted_table(&rows, 4, 0)
}

pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    args.verbosity.apply(args.json);
    let start = Instant::now();
    let folder = model_folder("MODEL", args.model.given()?, &[], interrupt)?;
    let options = args.exec.load_options();
    let store = options.place.options.cache.clone();
    if store.is_none() {
        note("without a cache, results are not saved");
    }
    let known = Arc::new(Mutex::new(Report {
        model: folder.name(),
        ..Report::default()
    }));
    // A setting may take many seconds, so Ctrl-C does not wait for it. Files of the cache are
    // always whole.
    let (json, shown) = (args.json, known.clone());
    let parting = interrupt.parting(move || {
        let mut report = lock(&shown);
        report.interrupted = true;
        // With the stream closed there is nobody to write to.
        let _closed = report.show(json);
        note(&report.closing(false, Duration::ZERO, Duration::ZERO));
    });
    let line = spinner(format!("measuring the defaults of {}", folder.name()));
    let tuner = Loaded::tuner(&folder, &options, store.as_deref());
    line.finish_and_clear();
    let mut tuner = tuner?;
    let learn = |tuner: &Tuner<'_>| {
        let mut report = lock(&known);
        (report.measured, report.all) = (tuner.measured(), tuner.sets());
        report.shapes = tuner.rows();
        let better = report.shapes.iter().any(|r| r.best_ns < r.default_ns);
        report.kept = better && store.as_ref().is_some_and(|s| !s.is_refused());
    };
    learn(&tuner);
    let (defaults, begun) = (start.elapsed(), Instant::now());
    let budget = Duration::from_secs(num::wide(args.seconds.get()));
    let most = args.sets.map_or(usize::MAX, NonZeroUsize::get);
    let progress = bar(tuner.sets().min(most));
    let time_left = |tuner: &Tuner<'_>| tuner.measured() == 0 || start.elapsed() < budget;
    while tuner.measured() < most && time_left(&tuner) && tuner.measure_next()? {
        learn(&tuner);
        progress.set_position(tuner.measured() as u64);
    }
    progress.finish_and_clear();
    drop(parting);
    let report = lock(&known);
    report.show(args.json)?;
    note(&report.closing(report.measured >= most, defaults, begun.elapsed()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(best_ns: u64) -> TuningRow {
        TuningRow {
            kernel: "matvec".to_owned(),
            shape: "4 x 8".to_owned(),
            default: "items 64".to_owned(),
            best: "items 32".to_owned(),
            default_ns: 300,
            best_ns,
            within_noise: false,
            tried: 2,
            sets: 8,
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_shape() {
        let text = text(&[row(200), row(300)]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split("  ").filter(|s| !s.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(
            lines[1],
            ["matvec", "4 x 8", "items 64", "items 32", "2/8", "1.50x"]
        );
        assert_eq!(lines[2], ["matvec", "4 x 8", "items 64", "-", "2/8", "1.00x"]);
        let close = TuningRow {
            within_noise: true,
            ..row(300)
        };
        assert!(super::text(&[close]).contains("noise"));
    }

    #[test]
    fn the_last_line_tells_how_far_it_came() {
        let report = |interrupted, measured| Report {
            measured,
            all: 16,
            interrupted,
            shapes: vec![],
            ..Report::default()
        };
        let closing = |r: Report| r.closing(false, Duration::from_secs(9), Duration::from_secs(25));
        let text = closing(report(false, 5));
        assert!(
            ["5 of 16", "--seconds 90"].iter().all(|p| text.contains(p)),
            "{text}"
        );
        let all = closing(report(false, 16));
        assert!(all.contains("16 of 16") && !all.contains("--seconds"), "{all}");
        let limited = report(false, 5).closing(true, Duration::ZERO, Duration::ZERO);
        assert!(
            limited.contains("5 of 16") && !limited.contains("--seconds"),
            "{limited}"
        );
        let none = closing(Report::default());
        assert!(!none.contains("of 0"), "{none}");
        let early = closing(report(true, 0));
        assert!(
            early.starts_with("interrupted") && !early.contains("16"),
            "{early}"
        );
        let some = closing(Report {
            shapes: vec![row(300)],
            ..report(true, 5)
        });
        assert!(
            some.starts_with("interrupted") && some.contains("5 of 16"),
            "{some}"
        );
    }
}
