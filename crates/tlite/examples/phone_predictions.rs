//! Predicts lower bounds on prefill and decode time on phone GPUs: costs of the plans
//! (`plan/cost.rs`) divided by given peaks. `cargo run --release --example phone_predictions --
//! OUT.json GPU=BYTES,F32,F16.. -- FOLDER..`, with peaks in bytes and operations per second. A
//! folder holds `model.onnx`; weights are not needed. Nothing is measured.

use serde::Serialize;
use std::path::{Path, PathBuf};
use tlite::roofline::{Peaks, Work};
use transformer_lite::unstable::backend::device_presets::PHONES;
use transformer_lite::unstable::backend::kernel::Language;
use transformer_lite::unstable::llm::ModelFolder;
use transformer_lite::unstable::llm::load::{LoadOptions, PlannedDecoder};

type AnyError = Box<dyn std::error::Error>;

/// Prompt lengths in figure 4 of the paper.
const PROMPTS: [usize; 3] = [128, 1024, 2048];

#[derive(Serialize)]
struct Line {
    model: String,
    gpu: String,
    prompt: usize,
    /// Operations for the whole prompt.
    prefill_flops: u64,
    /// Bytes for one token after it.
    decode_bytes: u64,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
}

/// `GPU=BYTES,F32,F16`.
fn peaks(text: &str) -> Result<(&str, Peaks), AnyError> {
    let (gpu, rates) = text.split_once('=').ok_or("expected GPU=BYTES,F32,F16")?;
    let rates: Vec<f64> = rates.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let [bytes_per_s, f32_flops_per_s, f16] = rates[..] else {
        return Err(format!("{text}: expected three rates").into());
    };
    let peaks = Peaks {
        bytes_per_s,
        f32_flops_per_s,
        f16_flops_per_s: Some(f16),
        matrix_flops_per_s: None,
        int8_ops_per_s: None,
        int16_ops_per_s: None,
        // Unknown; in a recording, a launch costs the device little.
        launch_s: 0.0,
    };
    Ok((gpu, peaks))
}

fn lines(folder: &Path, gpu: &str, peaks: &Peaks, out: &mut Vec<Line>) -> Result<(), AnyError> {
    let phone = PHONES
        .iter()
        .find(|p| p.name == gpu)
        .ok_or_else(|| format!("unknown GPU \"{gpu}\""))?;
    let options = LoadOptions {
        context: Some(PROMPTS[2] + 256),
        ..LoadOptions::default()
    };
    let model = ModelFolder::holding("FOLDER", folder, &[])?;
    let planned = PlannedDecoder::new(&model, &options, &phone.caps(Language::OpenClC))?;
    for prompt in PROMPTS {
        let of = |tokens, past| -> Result<Work, AnyError> {
            let costs = planned.costs(tokens, past)?;
            Ok(Work::new(String::new(), Some(tokens), &costs, peaks))
        };
        let (prefill, decode) = (of(prompt, 0)?, of(1, prompt)?);
        let speed = |work: &Work| work.most_tokens_per_s.unwrap_or_default();
        out.push(Line {
            model: model.name(),
            gpu: gpu.to_owned(),
            prompt,
            prefill_flops: prefill.whole.total.flops,
            decode_bytes: decode.whole.total.bytes(),
            prefill_tokens_per_s: speed(&prefill),
            decode_tokens_per_s: speed(&decode),
        });
    }
    Ok(())
}

fn main() -> Result<(), AnyError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: phone_predictions OUT.json GPU=BYTES,F32,F16.. -- FOLDER..";
    let (out, rest) = args.split_first().ok_or(usage)?;
    let (gpus, folders) = rest.split_at(rest.iter().position(|a| a == "--").ok_or(usage)?);
    let mut all = Vec::new();
    for folder in folders.iter().skip(1).map(PathBuf::from) {
        for text in gpus {
            let (gpu, peaks) = peaks(text)?;
            lines(&folder, gpu, &peaks, &mut all)?;
        }
    }
    std::fs::write(out, serde_json::to_vec_pretty(&all)?)?;
    Ok(())
}
