//! Classifies an image with `MobileNetV2`: `cargo run --release --example classify -- [PICTURE]`.
//!
//! `tools/fetch_model.py mobilenetv2 imagenet-names pictures` downloads the model, class names and
//! images.

mod common;

use clap::Parser;
use common::{AnyError, Common};
use std::path::PathBuf;
use transformer_lite::unstable::vision::labels::Labels;
use transformer_lite::unstable::vision::picture::{Fit, IMAGENET, PictureOptions};
use transformer_lite::unstable::vision::scores::largest;

/// Prints the most likely of 1000 classes
#[derive(Debug, Parser)]
struct Options {
    /// A PNG or JPEG file [default: a cat]
    picture: Option<PathBuf>,
    /// Number of classes to print
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let options = Options::parse();
    let mut model = options.common.model("mobilenetv2")?;
    let names = std::fs::read_to_string(options.common.file("imagenet-names", "names.json")?)?;
    let names = Labels::parse(&names).ok_or("names.json holds no class names")?;

    let picture = options.picture.as_deref();
    let picture = options.common.picture_file(picture, "chelsea.png")?;
    let prepared = model.prepare(
        &picture,
        &PictureOptions {
            fit: Fit::Crop,
            mean: IMAGENET[0],
            deviation: IMAGENET[1],
            ..PictureOptions::default()
        },
    )?;
    for (_, scores) in model.outputs(prepared.tensor)? {
        for top in largest(&scores, options.top, true) {
            let name = names.get(top.index).unwrap_or("?");
            println!("{:5.1} %  {name}", 100.0 * top.probability.unwrap_or(f64::NAN));
        }
    }
    Ok(())
}
