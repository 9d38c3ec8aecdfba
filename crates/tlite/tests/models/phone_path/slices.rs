//! Work in slices, so that other programs get their turn.

use super::play::Outcome;
use super::{Add, FEW, Model, of};
use tlite_fake_driver::{Config, Profile, Slow};

/// The trials of a model.
pub fn trials(add: &mut Add<'_>) {
    add(
        "what_fills_a_slice_runs_alone",
        Box::new(what_fills_a_slice_runs_alone),
    );
}

/// A kernel of which each dispatch takes longer than a slice of 8 ms.
const HEAVY: &str = "matmul_e0m";

/// Such a kernel is never queued with another command, be it the first time.
fn what_fills_a_slice_runs_alone(model: &Model) -> Outcome {
    let config = Config {
        clock: vec![Slow {
            kernel: HEAVY.to_owned(),
            ns: 8_000_000,
            without: None,
        }],
        ..of(Profile::Adreno)
    };
    // Slices with the kernel, and those of them with further commands.
    let slices = |slice_ms: &str| -> Result<(usize, usize), String> {
        let more = ["--recording", "off", "--slice-ms", slice_ms];
        let run = model.run(&config, FEW, &more)?;
        model.agrees(&run, FEW)?;
        let lines: Vec<&str> = run.lines("cl").collect();
        let is_heavy = |l: &&str| l.starts_with(&format!("clEnqueueNDRangeKernel kernel={HEAVY} "));
        let heavy = lines
            .split(|l| l.starts_with("clFlush"))
            .filter(|slice| slice.iter().any(is_heavy))
            .map(|slice| {
                slice
                    .iter()
                    .filter(|l| l.starts_with("clEnqueueNDRangeKernel "))
                    .count()
            });
        let counts: Vec<usize> = heavy.collect();
        Ok((counts.len(), counts.iter().filter(|n| **n > 1).count()))
    };
    match (slices("0")?, slices("8")?) {
        ((1.., 1..), (1.., 0)) => Ok(()),
        found => Err(format!("slices with {HEAVY}, and with more: {found:?}")),
    }
}
