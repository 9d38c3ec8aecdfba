//! Writes the logits of a decoder for given tokens, for comparison with other engines.
//!
//! `logits MODEL_DIR TOKENS.json OUT.f32 [reference|opencl|wgpu] [STEPS]`: TOKENS.json is a list of
//! token IDs. OUT.f32 receives one row of little-endian `f32` per token, with one element per
//! vocabulary entry. The default backend is `reference`. The last STEPS tokens (default 0) are
//! decoded one at a time after a prefill of the others.

use std::error::Error;
use std::path::Path;
use transformer_lite::unstable::backend::{self, BackendKind};
use transformer_lite::unstable::devices;
use transformer_lite::unstable::graph::pass::Target;
use transformer_lite::unstable::llm::LanguageModel;
use transformer_lite::unstable::llm::engine::{Decoder, DeviceModel, HostModel, SequenceConfig};

const USAGE: &str = "usage: logits MODEL_DIR TOKENS.json OUT.f32 [reference|opencl|wgpu] [STEPS]";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, tokens, out, rest @ ..] = args.as_slice() else {
        return Err(USAGE.into());
    };
    let (backend, steps) = match rest {
        [] => ("reference", 0),
        [backend] => (backend.as_str(), 0),
        [backend, steps] => (backend.as_str(), steps.parse::<usize>()?),
        _ => return Err(USAGE.into()),
    };
    let tokens: Vec<u32> = serde_json::from_slice(&std::fs::read(tokens)?)?;
    let path = Path::new(model).join("model.onnx");
    let context = tokens.len().max(2);
    let mut model: Box<dyn LanguageModel> = match backend {
        "reference" => Box::new(HostModel::new(Decoder::load(&path, &Target::HOST)?, context)?),
        "opencl" | "wgpu" => {
            let kind = if backend == "opencl" {
                BackendKind::OpenCl
            } else {
                BackendKind::Wgpu
            };
            let decoder = Decoder::load(&path, &Target::DEVICE)?;
            Box::new(DeviceModel::new(
                decoder,
                devices::open(kind, &backend::OpenOptions::default())?,
                &SequenceConfig::of(context),
            )?)
        }
        other => return Err(format!("unknown backend {other}; expected reference, opencl or wgpu").into()),
    };
    let (prompt, decoded) = tokens.split_at(tokens.len().saturating_sub(steps));
    let mut logits = Vec::new();
    for part in [prompt]
        .into_iter()
        .filter(|p| !p.is_empty())
        .chain(decoded.chunks(1))
    {
        logits.extend(model.forward_all(part)?);
    }
    std::fs::write(out, bytemuck::cast_slice(&logits))?;
    Ok(())
}
