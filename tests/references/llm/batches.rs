//! Several sequences of a real model in common steps, against each alone.

use std::path::Path;
use std::thread;
use tlite_testing::{Device, Outcome, Text, Tier};
use transformer_lite::unstable::backend::OpenOptions;
use transformer_lite::unstable::error::Result;
use transformer_lite::unstable::llm::load::{BatchOptions, LoadOptions, LoadedRows};
use transformer_lite::unstable::llm::sampler::SplitMix64;
use transformer_lite::unstable::llm::{BatchSequence, LanguageModel, ModelFolder, StepRunner};
use transformer_lite::unstable::placement::{BackendChoice, Placement};

/// Sequences of a schedule.
const SEQUENCES: u64 = 6;

fn steps(model: &Path, device: &Device) -> Result<StepRunner> {
    let folder = ModelFolder::holding("model", model, &[])?;
    let options = LoadOptions {
        place: Placement {
            backend: BackendChoice::On(device.kind),
            options: OpenOptions::default(),
        },
        context: Some(192),
        ..LoadOptions::default()
    };
    let batch = BatchOptions {
        sequences: 6,
        // Fewer than all sequences need, so that some are fed again.
        tokens: Some(640),
        reproducible: true,
        ..BatchOptions::default()
    };
    let loaded = LoadedRows::new(&folder, &options, &batch)?;
    StepRunner::start(loaded.model)
}

/// What a sequence generates in a random schedule: prompts, of which some begin alike, tokens,
/// drafts, and parts that are taken back.
fn generated(model: &mut BatchSequence, seed: u64) -> Result<Vec<u32>> {
    let mut random = SplitMix64::new(seed);
    let mut below = |n: u64| usize::try_from(random.next_u64() % n).expect("a small number");
    let token = |n: usize| u32::try_from(n % 40_000 + 3).expect("a small number");
    let mut all = Vec::new();
    for _ in 0..4 {
        let (kind, count, end) = (below(2), 1 + below(70), below(9));
        let prompt = (0..count).map(|i| token(i * (31 + 7 * kind)));
        let prompt: Vec<u32> = prompt.chain([token(end)]).collect();
        model.truncate(below(100));
        all.push(model.most_likely(&prompt)?);
        for _ in 0..below(12) {
            let last = all.last().copied().unwrap_or_default();
            all.push(model.most_likely(&[last])?);
        }
        all.extend(model.most_likely_all(&[1, 2, 3].map(token))?);
    }
    Ok(all)
}

/// With `reproducible`, every sequence gets what it gets alone.
pub fn schedules_change_nothing(model: &Path, device: &Device) -> Outcome {
    let _turn = device.turn();
    let (together, alone) = (steps(model, device).text()?, steps(model, device).text()?);
    let schedules = if Tier::of_environment() == Tier::Nightly {
        100
    } else {
        8
    };
    for schedule in 0..schedules {
        let seeds = || (0..SEQUENCES).map(|i| schedule * SEQUENCES + i);
        let found: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = seeds()
                .map(|seed| {
                    let mut sequence = together.sequence();
                    scope.spawn(move || generated(&mut sequence, seed))
                })
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("a sequence"))
                .collect()
        });
        for (seed, found) in seeds().zip(found) {
            let wanted = generated(&mut alone.sequence(), seed).text()?;
            if found.text()? != wanted {
                return Err(format!("sequence {seed} is not what it is alone"));
            }
        }
        if together.used_pages()[0] != 0 {
            return Err("pages leak".to_owned());
        }
    }
    Ok(())
}
