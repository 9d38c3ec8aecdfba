//! `tlite tune`.

use super::interrupt::Interrupt;
use super::options::{ExecOptions, from_one};
use super::output::{bar, note, put, put_json, spinner, table};
use crate::error::Result;
use crate::llm::ModelFolder;
use crate::llm::engine::{Tuner, TuningRow};
use crate::llm::load::Loaded;
use serde::Serialize;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Measure how kernels are best cut for a model on a device, and keep it
///
/// Every set of numbers that a kernel can run with is checked against the reference and timed in a prefill and in decoding, in turn with the default;
/// what gains more than such times differ by themselves is kept in the cache, for the device, its driver and the shapes of the model, and used from then on. Ctrl-C keeps and shows what was found until then, and the exit code is 130.
/// The commands of a run that is timed are queued at once, not in the slices of --slice-ms.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx and the files of its tokenizer
    model: PathBuf,
    /// Start nothing new after so many seconds, but for the first set
    #[arg(long, value_name = "N", default_value = "60", value_parser = from_one, allow_negative_numbers = true)]
    seconds: NonZeroUsize,
    /// Measure at most so many sets beside the defaults: those that were chosen earlier come first, then those that are like the defaults
    #[arg(long, value_name = "N", value_parser = from_one, allow_negative_numbers = true)]
    sets: Option<NonZeroUsize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exec: ExecOptions,
}

/// What is known so far, to be shown in the end or when Ctrl-C ends the program.
#[derive(Clone, Debug, Default, Serialize)]
struct Report {
    model: String,
    /// Sets of numbers that were measured, of how many.
    measured: usize,
    all: usize,
    /// Something was found that is better than a default, and is in the cache.
    kept: bool,
    interrupted: bool,
    shapes: Vec<TuningRow>,
}

impl Report {
    fn show(&self, json: bool, out: &mut dyn Write) -> Result<()> {
        if json {
            return put_json(out, self);
        }
        if self.shapes.is_empty() {
            return Ok(());
        }
        put(out, &text(&self.shapes))
    }

    /// One line on how far it came, in so much time for the `defaults` and for the `others`; `limited` where no more were asked for.
    fn closing(&self, limited: bool, defaults: Duration, others: Duration) -> String {
        let (measured, all) = (self.measured, self.all);
        match (self.interrupted, measured) {
            (true, _) if self.shapes.is_empty() => "stopped; not even the defaults were measured".to_owned(),
            (true, _) => format!("stopped; {measured} of {all} sets were measured"),
            _ if all == 0 => {
                "nothing to tune: no kernel of the model has numbers to choose on this device".to_owned()
            }
            (false, 1) if all == 1 => "the one set was measured".to_owned(),
            (false, _) if measured == all => format!("all {all} sets were measured"),
            (false, _) if limited => format!("{measured} of {all} sets were measured"),
            (false, _) => {
                #[expect(clippy::cast_precision_loss, reason = "for people")]
                let whole =
                    defaults.as_secs_f64() + others.as_secs_f64() * all as f64 / measured.max(1) as f64;
                let seconds = (whole / 10.0).ceil() * 10.0;
                format!("{measured} of {all} sets were measured; give --seconds {seconds:.0} for all")
            }
        }
    }
}

fn text(rows: &[TuningRow]) -> String {
    let head = ["kernel", "shape", "default", "best", "tried", "gain"]
        .map(str::to_owned)
        .to_vec();
    let line = |r: &TuningRow| {
        #[expect(clippy::cast_precision_loss, reason = "times of runs")]
        let gain = r.default_ns as f64 / r.best_ns.max(1) as f64;
        let best = match (r.best_ns < r.default_ns, r.within_noise) {
            (true, _) => r.best.as_str(),
            (false, true) => "- (others gain no more than noise)",
            (false, false) => "-",
        };
        vec![
            r.kernel.clone(),
            r.shape.clone(),
            r.default.clone(),
            best.to_owned(),
            format!("{}/{}", r.tried, r.sets),
            format!("{gain:.2}x"),
        ]
    };
    table(
        &std::iter::once(head)
            .chain(rows.iter().map(line))
            .collect::<Vec<_>>(),
        4,
    )
}

/// Runs the command.
pub fn run(args: &Args, interrupt: &Interrupt) -> Result<()> {
    let start = Instant::now();
    let folder = ModelFolder::holding("MODEL", &super::model::resolve(&args.model, interrupt)?, &[])?;
    let options = args.exec.load_options();
    let store = options.place.options.cache.clone();
    let mut notes = std::io::stderr();
    if store.is_none() {
        note(&mut notes, "note: without a cache nothing is kept");
    }
    let known = Arc::new(Mutex::new(Report {
        model: folder.name(),
        ..Report::default()
    }));
    // A set may take many seconds, so Ctrl-C does not wait for it. What was kept is whole, as files of the cache are.
    let (json, shown) = (args.json, known.clone());
    let parting = interrupt.parting(move || {
        let mut report = shown.lock().unwrap_or_else(PoisonError::into_inner);
        report.interrupted = true;
        if json || !report.shapes.is_empty() {
            // With the stream closed there is nobody to tell.
            let _closed = report.show(json, &mut std::io::stdout());
        }
        note(
            &mut std::io::stderr(),
            &report.closing(false, Duration::ZERO, Duration::ZERO),
        );
    });
    let line = spinner(format!("measuring {} as it is", folder.name()));
    let tuner = Loaded::tuner(&folder, &options, store.as_deref());
    line.finish_and_clear();
    let mut tuner = tuner?;
    let learn = |tuner: &Tuner<'_>| {
        let mut report = known.lock().unwrap_or_else(PoisonError::into_inner);
        (report.measured, report.all) = (tuner.measured(), tuner.sets());
        report.shapes = tuner.rows();
        let better = report.shapes.iter().any(|r| r.best_ns < r.default_ns);
        report.kept = better && store.as_ref().is_some_and(|s| !s.is_refused());
    };
    learn(&tuner);
    let (defaults, begun) = (start.elapsed(), Instant::now());
    let budget = Duration::from_secs(u64::try_from(args.seconds.get()).unwrap_or(u64::MAX));
    let progress = bar(tuner.sets().min(args.sets.map_or(usize::MAX, NonZeroUsize::get)));
    let most = args.sets.map_or(usize::MAX, NonZeroUsize::get);
    let time_left = |tuner: &Tuner<'_>| tuner.measured() == 0 || start.elapsed() < budget;
    while tuner.measured() < most && time_left(&tuner) && tuner.measure_next()? {
        learn(&tuner);
        progress.set_position(tuner.measured() as u64);
    }
    progress.finish_and_clear();
    drop(parting);
    let report = known.lock().unwrap_or_else(PoisonError::into_inner);
    report.show(args.json, &mut std::io::stdout().lock())?;
    note(
        &mut notes,
        &report.closing(report.measured >= most, defaults, begun.elapsed()),
    );
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
        assert!(super::text(&[close]).contains("  - (others gain no more than noise)  "));
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
        let part = "5 of 16 sets were measured";
        assert_eq!(
            closing(report(false, 5)),
            format!("{part}; give --seconds 90 for all")
        );
        assert_eq!(closing(report(false, 16)), "all 16 sets were measured");
        let limited = report(false, 5).closing(true, Duration::ZERO, Duration::ZERO);
        assert_eq!(limited, part);
        assert!(closing(Report::default()).starts_with("nothing to tune"));
        assert_eq!(
            closing(report(true, 0)),
            "stopped; not even the defaults were measured"
        );
        let some = Report {
            shapes: vec![row(300)],
            ..report(true, 5)
        };
        assert_eq!(closing(some), format!("stopped; {part}"));
    }
}
