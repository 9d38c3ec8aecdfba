//! Scores how well texts describe an image, with CLIP:
//! `cargo run --release --example similarity -- [--picture FILE] [TEXT]...`.
//!
//! `tools/export_clip.py` exports the two models. The scores are meaningful only if it was given
//! trained weights. The vocabulary is that of CLIP.

mod common;

use clap::Parser;
use common::{AnyError, Common, softmax};
use instant_clip_tokenizer::{Token, Tokenizer};
use std::path::PathBuf;
use transformer_lite::unstable::vision::picture::{Fit, PictureOptions, planes, scale};
use transformer_lite::{DType, HostTensor};

/// Mean and standard deviation of CLIP's training images.
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];
/// Factor for cosines in trained models.
const SCALE: f32 = 100.0;

/// Compares an image with texts
#[derive(Debug, Parser)]
struct Options {
    /// Texts to compare with
    #[arg(default_values = ["a photo of a cat", "a photo of a dog", "a cup of coffee on a table", "an astronaut"])]
    texts: Vec<String>,
    /// A PNG or JPEG file [default: a cat]
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Rows normalized to length 1.
fn normalised(shape: &[usize], data: &[f32]) -> Vec<Vec<f32>> {
    let row = |row: &[f32]| {
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
        row.iter().map(|v| v / length).collect()
    };
    let width = shape.last().copied().unwrap_or(1).max(1);
    data.chunks(width).map(row).collect()
}

/// A row of tokens per text, with start and end tokens, padded with zeros.
fn tokens(texts: &[String]) -> Result<HostTensor, AnyError> {
    let tokenizer = Tokenizer::new();
    let encode = |text: &String| {
        let mut tokens: Vec<Token> = vec![tokenizer.start_of_text()];
        tokenizer.encode(text, &mut tokens);
        tokens.truncate(76);
        tokens.push(tokenizer.end_of_text());
        tokens
            .into_iter()
            .map(|t| i64::from(t.to_u16()))
            .collect::<Vec<_>>()
    };
    let rows: Vec<Vec<i64>> = texts.iter().map(encode).collect();
    let longest = rows.iter().map(Vec::len).max().unwrap_or_default();
    let padded: Vec<i64> = rows
        .iter()
        .flat_map(|row| {
            row.iter()
                .copied()
                .chain(std::iter::repeat(0))
                .take(longest)
                .collect::<Vec<_>>()
        })
        .collect();
    Ok(HostTensor::from_i64(&[rows.len(), longest], &padded)?)
}

fn main() -> Result<(), AnyError> {
    env_logger::init();
    let options = Options::parse();
    let mut images = options.common.model("clip-image")?;
    let mut texts = options.common.model("clip-text")?;

    let picture = options
        .common
        .picture(options.picture.as_deref(), "chelsea.png")?;
    let side = images.input_sizes().last().copied().flatten().unwrap_or(224);
    let pixels = u32::try_from(side)?;
    let scaled = scale(&picture, pixels, pixels, Fit::Crop)?;
    let as_trained = PictureOptions {
        mean: MEAN,
        deviation: DEVIATION,
        ..PictureOptions::default()
    };
    let input = HostTensor::from_floats(DType::F32, &[1, 3, side, side], &planes(&scaled, &as_trained)?)?;
    let (shape, data) = images.run(input)?;
    let image = normalised(&shape, &data).pop().ok_or("no embedding")?;
    let (shape, data) = texts.run(tokens(&options.texts)?)?;

    let dot = |text: &Vec<f32>| image.iter().zip(text).map(|(a, b)| a * b).sum::<f32>();
    let cosines: Vec<f32> = normalised(&shape, &data).iter().map(dot).collect();
    let scores: Vec<f32> = cosines.iter().map(|c| SCALE * c).collect();
    for ((text, cosine), probability) in options.texts.iter().zip(&cosines).zip(softmax(&scores)) {
        println!("{cosine:6.3}  {:5.1} %  {text}", 100.0 * probability);
    }
    if let Some(weights) = images.metadata("weights")?.filter(|w| w.starts_with("made up")) {
        println!("the weights are {weights}: the scores only show that both models ran");
    }
    Ok(())
}
