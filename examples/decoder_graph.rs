//! Writes the graph of a known decoder at its real sizes, without weights, in 4-bit or float:
//! `cargo run --release --example decoder_graph -- llama2-7b OUT_DIR [--float f16|f32]
//! [--k-quants BITS] [--layers N] [--small] [--weights SEED]`.
//!
//! `--k-quants` uses the formats of GGUF's K-quants. BITS is 2 to 6; 4 is much like `Q4_K_M`.
//! `--layers` keeps the first N layers; `--small` shrinks all sizes; `--weights` writes random
//! weights, which is meant for small models. `tlite bench --random` generates those of large models
//! on the device.

use transformer_lite::DType;
use transformer_lite::unstable::quant::{Bits, Format};
use transformer_lite_convert::decoders::{self, Form, Spec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut form, mut small, mut weights, mut places) = (Form::E0m4(128), false, None, Vec::new());
    let mut layers = None;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--small" => small = true,
            "--k-quants" => {
                let bits = args.next().ok_or("--k-quants needs a number")?.parse()?;
                let nested = |bits: &Bits| Format::nested(*bits).is_some();
                form = Bits::new(bits)
                    .filter(nested)
                    .map(Form::KQuants)
                    .ok_or_else(|| format!("--k-quants: expected 2 to 6, found {bits}"))?;
            }
            "--layers" => layers = Some(args.next().ok_or("--layers needs a number")?.parse()?),
            "--weights" => weights = Some(args.next().ok_or("--weights needs a number")?.parse()?),
            "--float" => {
                form = match args.next().as_deref() {
                    Some("f16") => Form::Float(DType::F16),
                    Some("f32") => Form::Float(DType::F32),
                    other => return Err(format!("--float: expected f16 or f32, found {other:?}").into()),
                }
            }
            _ => places.push(arg),
        }
    }
    let names: Vec<&str> = Spec::all().map(|s| s.name).collect();
    let [name, folder] = places.as_slice() else {
        return Err(format!(
            "usage: decoder_graph MODEL OUT_DIR [--float f16|f32] [--k-quants BITS] \
             [--layers N] [--small] [--weights SEED]\nMODEL is one of {}",
            names.join(", ")
        )
        .into());
    };
    let mut spec = Spec::find(name)
        .ok_or_else(|| format!("unknown model \"{name}\"; expected one of {}", names.join(", ")))?;
    if small {
        spec = spec.small();
    }
    spec.layers = layers.unwrap_or(spec.layers);
    std::fs::create_dir_all(folder)?;
    let written = decoders::write(&spec, form, weights, folder.as_ref())?;
    println!(
        "{} nodes, {} weights of {} bytes{}",
        written.nodes,
        written.initializers,
        written.data_bytes,
        if weights.is_some() { "" } else { " (not written)" }
    );
    Ok(())
}
