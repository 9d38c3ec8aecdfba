//! Classifies an image with `MobileNetV2`: `cargo run --release --example classify -- [PICTURE]`.
//!
//! `tools/fetch_model.py mobilenetv2 imagenet-names pictures` downloads the model, class names and
//! images.

mod common;

use clap::Parser;
use common::{AnyError, Common, softmax};
use std::path::PathBuf;
use transformer_lite::unstable::vision::picture::{Fit, IMAGENET, PictureOptions, planes, scale};
use transformer_lite::{DType, HostTensor};

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
    let names: Vec<String> = serde_json::from_str(&names)?;

    let picture = options
        .common
        .picture(options.picture.as_deref(), "chelsea.png")?;
    let scaled = scale(&picture, 224, 224, Fit::Crop)?;
    let normalised = PictureOptions {
        mean: IMAGENET[0],
        deviation: IMAGENET[1],
        ..PictureOptions::default()
    };
    let input = HostTensor::from_floats(DType::F32, &[1, 3, 224, 224], &planes(&scaled, &normalised)?)?;
    let (_, scores) = model.run(input)?;

    let mut ranked: Vec<(usize, f32)> = softmax(&scores).into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (class, probability) in ranked.into_iter().take(options.top) {
        let name = names.get(class).map_or("?", String::as_str);
        println!("{:5.1} %  {name}", 100.0 * probability);
    }
    Ok(())
}
