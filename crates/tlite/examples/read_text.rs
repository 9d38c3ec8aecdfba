//! Reads text in a photograph with the three PP-OCRv4 models: one finds lines, one detects
//! upside-down lines, one reads them.
//! `cargo run --release --example read_text -- [PICTURE] [--output FILE]`.
//!
//! `tools/fetch_model.py ppocr-det ppocr-cls ppocr-rec pictures` downloads the models and images.

mod common;
#[path = "common/regions.rs"]
mod regions;

use clap::Parser;
use common::{AnyError, Common, Model, draw, save};
use image::{Rgb, RgbImage, imageops};
use regions::Rect;
use std::path::PathBuf;
use transformer_lite::unstable::vision::picture::{Fit, PictureOptions, planes, scale};
use transformer_lite::{DType, HostTensor};

/// Reads the lines of text in an image
#[derive(Debug, Parser)]
struct Options {
    /// A PNG or JPEG file [default: a page of a book]
    picture: Option<PathBuf>,
    /// Output file for the image with boxes and text
    #[arg(long, value_name = "FILE", default_value = "read.png")]
    output: PathBuf,
    /// Minimum mean probability of a line's characters
    #[arg(long, value_name = "F", default_value_t = 0.5)]
    least: f32,
    #[command(flatten)]
    common: Common,
}

/// Text pixels have a probability above this.
const TEXT: f32 = 0.3;
/// Text regions have at least this mean probability.
const REGION: f32 = 0.5;
/// The model marks the middle of lines: a box grows by this multiple of its area divided by its
/// perimeter.
const GROWTH: f32 = 1.6;
/// Height of line images for the second and third model.
const HEIGHT: u32 = 48;

/// The models were trained with BGR channel order and values from -1 to 1.
fn numbers(picture: &RgbImage) -> Result<Vec<f32>, AnyError> {
    let as_trained = PictureOptions {
        mean: [0.5; 3],
        deviation: [0.5; 3],
        bgr: true,
        ..PictureOptions::default()
    };
    Ok(planes(picture, &as_trained)?)
}

fn find(model: &mut Model, picture: &RgbImage) -> Result<Vec<Rect>, AnyError> {
    let (w, h) = (picture.width() as f32, picture.height() as f32);
    // Small images are enlarged, as in training.
    let factor = (736.0 / w.min(h)).max(1.0).min(1280.0 / w.max(h));
    let side = |length: f32| ((length * factor / 32.0).round() as u32).max(1) * 32;
    let (width, height) = (side(w), side(h));
    let scaled = scale(picture, width, height, Fit::Stretch)?;
    let shape = [1, 3, height as usize, width as usize];
    let (_, map) = model.run(HostTensor::from_floats(DType::F32, &shape, &numbers(&scaled)?)?)?;
    let mut found = Vec::new();
    for region in regions::regions(&map, width as usize, TEXT) {
        let Some(rect) = region.rect().filter(|_| region.mean >= REGION) else {
            continue;
        };
        let [a, b] = rect.size;
        if a.min(b) >= 4.0 {
            let rect = rect.grown(GROWTH * a * b / (2.0 * (a + b)));
            found.push(rect.scaled([w / width as f32, h / height as f32]));
        }
    }
    Ok(in_order(found))
}

/// Top to bottom, and left to right within a line.
fn in_order(mut all: Vec<Rect>) -> Vec<Rect> {
    all.sort_by(|a, b| a.centre[1].total_cmp(&b.centre[1]));
    let mut lines: Vec<Vec<Rect>> = Vec::new();
    for rect in all {
        match lines.last_mut() {
            Some(line) if rect.centre[1] - line[0].centre[1] < 0.5 * line[0].size[1].min(rect.size[1]) => {
                line.push(rect);
            }
            _ => lines.push(vec![rect]),
        }
    }
    for line in &mut lines {
        line.sort_by(|a, b| a.centre[0].total_cmp(&b.centre[0]));
    }
    lines.into_iter().flatten().collect()
}

/// A line scaled to the models' height, left-aligned in a tensor of `least` to `most` columns.
fn line_tensor(line: &RgbImage, least: u32, most: u32) -> Result<HostTensor, AnyError> {
    let natural = (line.width() as f32 / line.height() as f32 * HEIGHT as f32).ceil() as u32;
    let width = natural.clamp(8, most);
    let scaled = imageops::resize(line, width, HEIGHT, imageops::FilterType::Triangle);
    let all = width.max(least) as usize;
    let mut data = vec![0.0; 3 * HEIGHT as usize * all];
    for (row, given) in data.chunks_mut(all).zip(numbers(&scaled)?.chunks(width as usize)) {
        row[..given.len()].copy_from_slice(given);
    }
    Ok(HostTensor::from_floats(
        DType::F32,
        &[1, 3, HEIGHT as usize, all],
        &data,
    )?)
}

fn is_upside_down(model: &mut Model, line: &RgbImage) -> Result<bool, AnyError> {
    let (_, probabilities) = model.run(line_tensor(line, 192, 192)?)?;
    Ok(probabilities.get(1).is_some_and(|p| *p > 0.9))
}

/// The text of a line, and the mean probability of its characters.
fn read(model: &mut Model, alphabet: &[String], line: &RgbImage) -> Result<(String, f32), AnyError> {
    let (shape, output) = model.run(line_tensor(line, 320, 3200)?)?;
    let classes = shape.last().copied().unwrap_or_default();
    if classes != alphabet.len() {
        return Err(format!("{classes} classes, but {} characters", alphabet.len()).into());
    }
    // CTC decoding: take the best class per step; 0 is blank, and repetitions without a blank are
    // merged.
    let (mut text, mut sum, mut count, mut before) = (String::new(), 0.0, 0.0, 0);
    for step in output.chunks(classes) {
        let best = (0..classes)
            .max_by(|a, b| step[*a].total_cmp(&step[*b]))
            .unwrap_or(0);
        if best != 0 && best != before {
            text.push_str(&alphabet[best]);
            (sum, count) = (sum + step[best], count + 1.0);
        }
        before = best;
    }
    Ok((text, if count > 0.0 { sum / count } else { 0.0 }))
}

/// The image with boxes, and next to it the text at the same positions.
fn drawn(picture: &RgbImage, lines: &[(Rect, String)]) -> RgbImage {
    let (w, h) = (picture.width(), picture.height());
    let factor = (1000.0 / w as f32).max(1.0);
    let (width, height) = ((w as f32 * factor) as u32, (h as f32 * factor) as u32);
    let large = imageops::resize(picture, width, height, imageops::FilterType::CatmullRom);
    let mut page = RgbImage::from_pixel(2 * width, height, Rgb([255; 3]));
    imageops::replace(&mut page, &large, 0, 0);
    for (i, (rect, text)) in lines.iter().enumerate() {
        let rect = rect.scaled([factor; 2]);
        draw::polygon(&mut page, &rect.corners(), 2.5, draw::colour(i));
        // As high as fits the box.
        let high = rect.size[0].min(rect.size[1]) * 0.75;
        let fits = rect.size[0].max(rect.size[1]) / draw::text_width(text, high).max(1.0);
        let size = (high * fits.min(1.0)).max(8.0);
        let [left, top] = rect.at(0.0, 0.5);
        let at = [left + width as f32, top - 0.5 * size];
        draw::text(&mut page, text, at, size, draw::colour(i));
    }
    page
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let options = Options::parse();
    let common = &options.common;
    let mut finder = common.model("ppocr-det")?;
    let mut turner = common.model("ppocr-cls")?;
    let mut reader = common.model("ppocr-rec")?;
    let characters = reader.metadata("character")?.ok_or("the model has no alphabet")?;
    let mut alphabet = vec![String::new()];
    alphabet.extend(characters.lines().map(str::to_owned));
    alphabet.push(" ".to_owned());

    let picture = common.picture(options.picture.as_deref(), "page.png")?;
    let mut lines = Vec::new();
    for rect in find(&mut finder, &picture)? {
        let mut line = rect.cut(&picture);
        if line.height() as f32 >= 1.5 * line.width() as f32 {
            line = imageops::rotate270(&line);
        }
        if is_upside_down(&mut turner, &line)? {
            line = imageops::rotate180(&line);
        }
        let (text, probability) = read(&mut reader, &alphabet, &line)?;
        if probability >= options.least {
            println!("{:3.0} %  {text}", 100.0 * probability);
            lines.push((rect, text));
        }
    }
    save(&drawn(&picture, &lines), &options.output)
}
