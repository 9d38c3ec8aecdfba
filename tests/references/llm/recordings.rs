//! Ways in which commands reach an OpenCL device: one by one, recorded by the driver, in slices.
//! None of them changes a token.

use super::{Outcome, decoder, tokens};
use std::path::Path;
use tlite_testing::{Device, Text};
use transformer_lite::unstable::backend::{BackendKind, OpenOptions, ReplayMode, Stats};
use transformer_lite::unstable::devices;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{DeviceModel, Logits, SequenceConfig};
use transformer_lite::unstable::llm::sampler::arg_max;

/// Tokens that are generated: across a multiple of the padding.
const STEPS: usize = 80;
const CONTEXT: usize = 160;

/// Logits of every step of greedy decoding behind `prompt` tokens, and the counters of the device.
fn decoded(model: &Path, options: &OpenOptions, prompt: usize) -> Result<(Vec<Vec<f32>>, Stats), String> {
    let backend = devices::open(BackendKind::OpenCl, options).text()?;
    let decoder = decoder(model, &Target::DEVICE, Logits::Last)?;
    let mut model = DeviceModel::new(decoder, backend, &SequenceConfig::of(CONTEXT)).text()?;
    let mut logits = Vec::new();
    let vocab = u32::try_from(model.vocab()).text()?;
    let prompt: Vec<u32> = tokens(prompt).iter().map(|t| t % vocab).collect();
    model.forward(&prompt, &mut logits).text()?;
    let mut all = vec![logits.clone()];
    for _ in 0..STEPS {
        let token = arg_max(&logits).text()?;
        model.forward(&[token], &mut logits).text()?;
        all.push(logits.clone());
    }
    Ok((all, model.stats()))
}

/// Every way that `device` offers gives the same bits as commands one by one, and is used where it
/// is asked for.
pub fn ways_change_nothing(model: &Path, device: &Device) -> Outcome {
    let options = |recording, slice_ms| OpenOptions {
        recording,
        slice_ms: Some(slice_ms),
        ..OpenOptions::of(Some(&device.caps.device))
    };
    let (wanted, plain) = decoded(model, &options(ReplayMode::Off, 0), 20)?;
    if plain.replayed_submits != 0 || plain.longest_slice_ns != 0 {
        return Err(format!("plain, and yet {plain:?}"));
    }
    let mut ways = vec![(ReplayMode::Off, 1)];
    for way in [ReplayMode::CommandBuffer, ReplayMode::Qcom] {
        if devices::open(BackendKind::OpenCl, &options(way, 0)).is_ok() {
            ways.extend([(way, 0), (way, 1)]);
        }
    }
    for (way, slice_ms) in ways {
        let (found, stats) = decoded(model, &options(way, slice_ms), 20)?;
        if let Some(step) = (0..wanted.len()).find(|i| found.get(*i) != wanted.get(*i)) {
            return Err(format!(
                "{way}, slices of {slice_ms} ms: other logits at step {step}"
            ));
        }
        // A recording is first run one by one, and again where a length crosses a block and cannot
        // be patched.
        let least = STEPS as u64 - 8;
        if way != ReplayMode::Off && slice_ms == 0 && stats.replayed_submits < least {
            return Err(format!(
                "{way}: {stats:?}, at least {least} from recordings expected"
            ));
        }
        if (slice_ms > 0) != (stats.longest_slice_ns > 0) {
            return Err(format!("{way}, slices of {slice_ms} ms: {stats:?}"));
        }
    }
    Ok(())
}
