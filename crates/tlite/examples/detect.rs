//! Detects objects in an image with `YOLO11n`:
//! `cargo run --release --example detect -- [PICTURE] [--output FILE]`.
//!
//! `tools/fetch_model.py yolo11n pictures` downloads the model and images. The model's license is
//! AGPL-3.0.

mod common;

use clap::Parser;
use common::{AnyError, Common, draw, save};
use std::path::PathBuf;
use transformer_lite::unstable::vision::answer::Reading;
use transformer_lite::unstable::vision::labels::Labels;
use transformer_lite::unstable::vision::picture::{Fit, PictureOptions, open};

/// Finds objects of 80 classes and draws a box around each
#[derive(Debug, Parser)]
struct Options {
    /// A PNG or JPEG file [default: a cup of coffee]
    picture: Option<PathBuf>,
    /// Output file for the image with boxes
    #[arg(long, value_name = "FILE", default_value = "detected.png")]
    output: PathBuf,
    /// Minimum probability of an object
    #[arg(long, value_name = "F", default_value_t = 0.25)]
    least: f32,
    /// Longer side of the model's input, in pixels
    #[arg(long, value_name = "N", default_value_t = 640)]
    size: u32,
    #[command(flatten)]
    common: Common,
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let options = Options::parse();
    let mut model = options.common.model("yolo11n")?;
    let labels = model.metadata("names")?.as_deref().and_then(Labels::of_metadata);
    let reading = Reading {
        classes: labels.as_ref().map(Labels::classes),
        labels,
        ..Reading::default()
    };
    let picture = options.picture.as_deref();
    let file = options.common.picture_file(picture, "coffee.png")?;
    let mut picture = open(&file)?;

    let (w, h) = (picture.width() as f32, picture.height() as f32);
    let factor = options.size.clamp(32, 4096) as f32 / w.max(h);
    let side = |length: f32| ((length * factor / 32.0).ceil() as u32).max(1) * 32;
    let prepared = model.prepare(
        &file,
        &PictureOptions {
            size: Some((side(w), side(h))),
            fit: Fit::Pad,
            ..PictureOptions::default()
        },
    )?;
    let outputs = model.outputs(prepared.tensor.clone())?;

    let thickness = (w.max(h) / 250.0).max(2.0);
    let (found, _) = reading.objects(&outputs, &prepared, options.least)?;
    for (i, found) in found.into_iter().enumerate() {
        let name = found.label.as_deref().unwrap_or("?");
        let [left, top, right, bottom] = found.edges;
        let what = format!("{name} {:.0} %", 100.0 * found.score);
        println!("{what:<20} {left:.0}, {top:.0} to {right:.0}, {bottom:.0}");
        let corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
        let colour = draw::colour(i);
        draw::polygon(&mut picture, &corners, thickness, colour);
        draw::label(&mut picture, &what, [left, top], thickness * 7.0, colour);
    }
    save(&picture, &options.output)
}
