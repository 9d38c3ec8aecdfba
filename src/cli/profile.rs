//! `tlite profile`: device time by kernel, for one prefill and one decode run.

use super::load::load;
use super::options::{ExecOptions, from_one};
use super::output::{put, put_json, table};
use crate::error::{Error, Result};
use crate::llm::engine::DeviceModel;
use crate::llm::load::Purpose;
use crate::llm::{LanguageModel, ModelFolder};
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// Show where the device's time goes, by kernel
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the model
    model: PathBuf,
    /// Tokens of the prefill run, at most one chunk
    #[arg(long, value_name = "N", default_value = "128", value_parser = from_one, allow_negative_numbers = true)]
    prefill: NonZeroUsize,
    /// Tokens in the cache when the decode run starts
    #[arg(long, value_name = "N", default_value = "128", value_parser = from_one, allow_negative_numbers = true)]
    past: NonZeroUsize,
    /// One JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    exec: ExecOptions,
}

/// Time of all dispatches of one kernel.
#[derive(Debug, serde::Serialize)]
struct Line {
    run: &'static str,
    kernel: String,
    dispatches: usize,
    microseconds: f64,
}

#[derive(Debug, serde::Serialize)]
struct Report<'a> {
    backend: &'a str,
    device: &'a str,
    driver: &'a str,
    kernels: Vec<Line>,
}

/// Times one run; earlier ones warm the device up.
fn measure(model: &mut DeviceModel, run: &'static str, past: usize, tokens: usize) -> Result<Vec<Line>> {
    const RUNS: usize = 5;
    let mut logits = Vec::new();
    let mut best: Option<Vec<Line>> = None;
    for _ in 0..RUNS {
        model.truncate(0);
        if past > 0 {
            model.forward(&vec![1; past], &mut logits)?;
        }
        let mut lines: Vec<Line> = Vec::new();
        for step in model.profile(&vec![1; tokens])? {
            let kernel = step.kernel.unwrap_or_else(|| "host".to_owned());
            #[expect(clippy::cast_precision_loss, reason = "a run takes far less than 2^52 ns")]
            let time = step.nanoseconds as f64 / 1e3;
            match lines.iter_mut().find(|l| l.kernel == kernel) {
                Some(l) => {
                    l.dispatches += 1;
                    l.microseconds += time;
                }
                None => lines.push(Line {
                    run,
                    kernel,
                    dispatches: 1,
                    microseconds: time,
                }),
            }
        }
        let total = |l: &[Line]| l.iter().map(|l| l.microseconds).sum::<f64>();
        if best.as_ref().is_none_or(|b| total(&lines) < total(b)) {
            best = Some(lines);
        }
    }
    let mut lines = best.unwrap_or_default();
    lines.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    Ok(lines)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let (prefill, past) = (args.prefill.get(), args.past.get());
    let folder = ModelFolder::holding("MODEL", &args.model, &[])?;
    let loaded = load(
        &folder,
        &args.exec.load_options(),
        Purpose::Generation,
        &mut |_| (),
    )?;
    let Some(mut model) = loaded.device_model()? else {
        return Err(Error::usage("--backend", "the host has no kernels to time"));
    };
    let most = model.run_length();
    if prefill > most {
        return Err(Error::usage(
            "--prefill",
            format!("{prefill}: one run takes at most {most} tokens"),
        ));
    }
    if past >= model.context() {
        return Err(Error::usage(
            "--past",
            format!("{past} tokens leave no room in a context of {}", model.context()),
        ));
    }
    let mut lines = measure(&mut model, "prefill", 0, prefill)?;
    lines.extend(measure(&mut model, "decode", past, 1)?);
    let caps = model.caps().clone();
    let mut out = std::io::stdout().lock();
    if args.json {
        let report = Report {
            backend: caps.backend,
            device: &caps.device,
            driver: &caps.driver,
            kernels: lines,
        };
        return put_json(&mut out, &report);
    }
    let mut rows = vec![
        ["run", "kernel", "dispatches", "us", "share"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for run in ["prefill", "decode"] {
        let total: f64 = lines
            .iter()
            .filter(|l| l.run == run)
            .map(|l| l.microseconds)
            .sum();
        for l in lines.iter().filter(|l| l.run == run) {
            let share = format!("{:.1} %", 100.0 * l.microseconds / total.max(1e-9));
            rows.push(vec![
                run.to_owned(),
                l.kernel.clone(),
                l.dispatches.to_string(),
                format!("{:.0}", l.microseconds),
                share,
            ]);
        }
        let dispatches: usize = lines.iter().filter(|l| l.run == run).map(|l| l.dispatches).sum();
        rows.push(vec![
            run.to_owned(),
            "all".to_owned(),
            dispatches.to_string(),
            format!("{total:.0}"),
            "100.0 %".to_owned(),
        ]);
    }
    put(&mut out, &table(&rows, 2))
}
