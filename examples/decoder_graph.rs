//! Writes the graph of a decoder at the true sizes of a known model, without weights, as 4-bit or float:
//! `cargo run --release --example decoder_graph -- llama2-7b OUT_DIR [--float f16|f32] [--layers N] [--small] [--weights SEED]`.
//!
//! `--layers` takes the first N layers; `--small` keeps the form and shrinks the sizes; `--weights` makes random weights, which only small models should have:
//! `tlite bench --random` makes those of large ones on the device.

use transformer_lite::decoders::{self, Form, Spec};
use transformer_lite::tensor::DType;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut form, mut small, mut weights, mut places) = (Form::E0m4(128), false, None, Vec::new());
    let mut layers = None;
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--small" => small = true,
            "--layers" => layers = Some(args.next().ok_or("--layers needs a number")?.parse()?),
            "--weights" => weights = Some(args.next().ok_or("--weights needs a number")?.parse()?),
            "--float" => {
                form = match args.next().as_deref() {
                    Some("f16") => Form::Float(DType::F16),
                    Some("f32") => Form::Float(DType::F32),
                    other => return Err(format!("--float takes f16 or f32, not {other:?}").into()),
                }
            }
            _ => places.push(arg),
        }
    }
    let names: Vec<&str> = Spec::all().map(|s| s.name).collect();
    let [name, folder] = places.as_slice() else {
        return Err(format!(
            "usage: decoder_graph MODEL OUT_DIR [--float f16|f32] [--layers N] [--small] [--weights SEED], with a MODEL of {}",
            names.join(", ")
        )
        .into());
    };
    let mut spec =
        Spec::find(name).ok_or_else(|| format!("no model \"{name}\"; there are {}", names.join(", ")))?;
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
        if weights.is_some() {
            ""
        } else {
            ", which are absent"
        }
    );
    Ok(())
}
