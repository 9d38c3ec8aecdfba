//! Writes the logits of a decoder for given tokens, for comparison with other engines.
//!
//! `logits MODEL_DIR TOKENS.json OUT.f32 [host|opencl|wgpu]`: TOKENS.json is a list of ids; OUT.f32 receives one row of
//! little-endian `f32` a token, each `vocabulary` long. The host is the default.

use std::error::Error;
use std::path::Path;
use transformer_lite::backend::{self, BackendKind};
use transformer_lite::graph::pass::Pipeline;
use transformer_lite::llm::Model;
use transformer_lite::llm::engine::{Decoder, DeviceModel, HostModel, Lengths, Logits};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (model, tokens, out, backend) = match args.as_slice() {
        [model, tokens, out] => (model, tokens, out, "host"),
        [model, tokens, out, backend] => (model, tokens, out, backend.as_str()),
        _ => return Err("usage: logits MODEL_DIR TOKENS.json OUT.f32 [host|opencl|wgpu]".into()),
    };
    let tokens: Vec<u32> = serde_json::from_slice(&std::fs::read(tokens)?)?;
    let path = Path::new(model).join("model.onnx");
    let context = tokens.len().max(2);
    let logits = match backend {
        "host" => HostModel::new(Decoder::load(&path, &Pipeline::host(), Logits::All)?, context)?
            .forward_all(&tokens)?,
        "opencl" | "wgpu" => {
            let kind = if backend == "opencl" {
                BackendKind::OpenCl
            } else {
                BackendKind::Wgpu
            };
            let decoder = Decoder::load(&path, &Pipeline::standard(), Logits::All)?;
            DeviceModel::new(decoder, backend::open(kind, None)?, &Lengths::of(context))?
                .forward_all(&tokens)?
        }
        other => return Err(format!("unknown backend {other}").into()),
    };
    std::fs::write(out, bytemuck::cast_slice(&logits))?;
    Ok(())
}
