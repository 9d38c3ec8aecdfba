//! Detects objects in an image with `YOLO11n`:
//! `cargo run --release --example detect -- [PICTURE] [--output FILE]`.
//!
//! `tools/fetch_model.py yolo11n pictures` downloads the model and images. The model's license is
//! AGPL-3.0.

mod common;

use clap::Parser;
use common::{AnyError, Common, draw, save};
use std::path::PathBuf;
use transformer_lite::unstable::vision::picture::{Fit, PictureOptions, planes, scale};
use transformer_lite::{DType, HostTensor};

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

#[derive(Clone, Debug)]
struct Found {
    class: usize,
    probability: f32,
    /// Left, top, right, bottom.
    edges: [f32; 4],
}

/// Intersection over union of two boxes.
fn overlap(a: &Found, b: &Found) -> f32 {
    let area = |e: &[f32; 4]| (e[2] - e[0]).max(0.0) * (e[3] - e[1]).max(0.0);
    let (a, b) = (&a.edges, &b.edges);
    let shared = area(&[a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    shared / (area(a) + area(b) - shared).max(1e-6)
}

/// The boxes of the output `[1, 4 + classes, count]` (rows: center, size, probabilities) after
/// non-maximum suppression per class with threshold 0.45.
fn objects(shape: &[usize], output: &[f32], least: f32) -> Vec<Found> {
    let [_, rows, count] = *shape else {
        return Vec::new();
    };
    let at = |row: usize, i: usize| output[row * count + i];
    let mut all = Vec::new();
    for i in 0..count {
        let best = (4..rows).max_by(|a, b| at(*a, i).total_cmp(&at(*b, i)));
        let Some(row) = best.filter(|row| at(*row, i) >= least) else {
            continue;
        };
        let [x, y, w, h] = [at(0, i), at(1, i), at(2, i), at(3, i)];
        all.push(Found {
            class: row - 4,
            probability: at(row, i),
            edges: [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0],
        });
    }
    all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    let mut kept: Vec<Found> = Vec::new();
    for one in all {
        if !kept
            .iter()
            .any(|k| k.class == one.class && overlap(k, &one) > 0.45)
        {
            kept.push(one);
        }
    }
    kept
}

/// Class names from a text like `{0: 'person', 1: 'bicycle'}`.
fn names(text: &str) -> Vec<String> {
    let quoted = text.split('\'').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let options = Options::parse();
    let mut model = options.common.model("yolo11n")?;
    let names = names(&model.metadata("names")?.unwrap_or_default());
    let mut picture = options.common.picture(options.picture.as_deref(), "coffee.png")?;

    let (w, h) = (picture.width() as f32, picture.height() as f32);
    let factor = options.size.clamp(32, 4096) as f32 / w.max(h);
    let side = |length: f32| ((length * factor / 32.0).ceil() as u32).max(1) * 32;
    let (width, height) = (side(w), side(h));
    let scaled = scale(&picture, width, height, Fit::Pad)?;
    let shape = [1, 3, height as usize, width as usize];
    let input = HostTensor::from_floats(DType::F32, &shape, &planes(&scaled, &PictureOptions::default())?)?;
    let (shape, output) = model.run(input)?;

    // The image fills the input along one side.
    let factor = (width as f32 / w).min(height as f32 / h);
    let thickness = (w.max(h) / 250.0).max(2.0);
    for (i, found) in objects(&shape, &output, options.least).into_iter().enumerate() {
        let name = names.get(found.class).map_or("?", String::as_str);
        let limits = [w, h, w, h];
        let mut edges = found.edges.map(|e| e / factor);
        edges
            .iter_mut()
            .zip(limits)
            .for_each(|(e, most)| *e = e.clamp(0.0, most - 1.0));
        let [left, top, right, bottom] = edges;
        let what = format!("{name} {:.0} %", 100.0 * found.probability);
        println!("{what:<20} {left:.0}, {top:.0} to {right:.0}, {bottom:.0}");
        let corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
        let colour = draw::colour(i);
        draw::polygon(&mut picture, &corners, thickness, colour);
        draw::label(&mut picture, &what, [left, top], thickness * 7.0, colour);
    }
    save(&picture, &options.output)
}
