//! `tlite tune`.

use super::interrupt::Interrupt;
use super::options::{ExecOptions, from_one};
use super::output::{bar, note, put, put_json, spinner, table};
use crate::error::Result;
use crate::llm::ModelFolder;
use crate::llm::engine::TuningRow;
use crate::llm::load::Loaded;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Measure how kernels are best cut for a model on a device, and keep it
///
/// Every set of numbers that a kernel can run with is checked against the reference and timed in a prefill and in decoding; the fastest is kept in the
/// cache, for the device, its driver and the shapes of the model, and used from then on. Ctrl-C keeps what was found until then.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with model.onnx and the files of its tokenizer
    model: PathBuf,
    /// Start nothing new after so many seconds, but for the first set
    #[arg(long, value_name = "N", default_value = "60", value_parser = from_one, allow_negative_numbers = true)]
    seconds: NonZeroUsize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exec: ExecOptions,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    model: String,
    /// Sets of numbers that were measured, of how many.
    measured: usize,
    all: usize,
    kept: bool,
    shapes: &'a [TuningRow],
}

fn text(rows: &[TuningRow]) -> String {
    let head = ["kernel", "shape", "default", "best", "gain"]
        .map(str::to_owned)
        .to_vec();
    let line = |r: &TuningRow| {
        #[expect(clippy::cast_precision_loss, reason = "times of runs")]
        let gain = r.default_ns as f64 / r.best_ns.max(1) as f64;
        let best = if r.best_ns < r.default_ns {
            r.best.clone()
        } else {
            "-".to_owned()
        };
        vec![
            r.kernel.clone(),
            r.shape.clone(),
            r.default.clone(),
            best,
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
    let folder = ModelFolder::holding("MODEL", &args.model, &[])?;
    let options = args.exec.load_options();
    let store = options.place.options.cache.clone();
    let mut notes = std::io::stderr();
    if store.is_none() {
        note(&mut notes, "note: without a cache nothing is kept");
    }
    let line = spinner(format!("measuring {} as it is", folder.name()));
    let tuner = Loaded::tuner(&folder, &options, store.as_deref());
    line.finish_and_clear();
    let mut tuner = tuner?;
    let stopping = interrupt.generating();
    let budget = Duration::from_secs(u64::try_from(args.seconds.get()).unwrap_or(u64::MAX));
    let progress = bar(tuner.sets());
    let mut measured = 0;
    while (measured == 0 || start.elapsed() < budget)
        && !stopping.flag().is_cancelled()
        && tuner.measure_next()?
    {
        measured += 1;
        progress.set_position(measured);
    }
    progress.finish_and_clear();
    drop(stopping);
    let (rows, measured) = (tuner.rows(), usize::try_from(measured).unwrap_or(usize::MAX));
    let mut stdout = std::io::stdout().lock();
    if args.json {
        return put_json(
            &mut stdout,
            &Report {
                model: folder.name(),
                measured,
                all: tuner.sets(),
                kept: store.is_some(),
                shapes: &rows,
            },
        );
    }
    put(&mut stdout, &text(&rows))?;
    note(
        &mut notes,
        &format!("{measured} of {} sets of numbers were measured", tuner.sets()),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_shape() {
        let row = |best_ns| TuningRow {
            kernel: "matvec".to_owned(),
            shape: "4 x 8".to_owned(),
            default: "items 64".to_owned(),
            best: "items 32".to_owned(),
            default_ns: 300,
            best_ns,
        };
        let text = text(&[row(200), row(300)]);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split("  ").filter(|s| !s.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(lines[1], ["matvec", "4 x 8", "items 64", "items 32", "1.50x"]);
        assert_eq!(lines[2], ["matvec", "4 x 8", "items 64", "-", "1.00x"]);
    }
}
