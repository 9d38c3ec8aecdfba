//! What a network learns: how pictures are made of a data set, the loss, and the score.

mod angle;
pub mod boxes;
pub mod classes;
mod scenes;

use crate::data::{Augmentation, Data, Fit, Label, Pictures};
use crate::error::{Error, Result};
use crate::train::seed;
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::path::Path;
use transformer_lite::unstable::llm::sampler::SplitMix64;

/// What a network learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// The class of a picture: a score for each class.
    #[default]
    Classes,
    /// The angle by which a picture is turned: one number, in units of 45 degrees clockwise.
    Angle,
    /// Boxes and classes of the pictures that are pasted into a scene; see `ssdlite`.
    Scenes,
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.rules().name())
    }
}

/// The loss of a batch.
#[derive(Debug)]
pub struct Loss {
    /// One element.
    pub loss: Tensor<1>,
    /// How many of `of` predictions are right; one element.
    pub right: Tensor<1>,
    pub of: usize,
}

/// What a test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Score {
    Classes {
        /// Share of pictures whose largest score is that of their class.
        top1: f64,
        /// Mean over the classes of the average precision of each class against the others.
        mean_ap: f64,
    },
    Angle {
        /// Share of pictures whose angle is found within 5 degrees.
        within_5: f64,
        /// Mean absolute error in degrees.
        mean_error: f64,
    },
    Scenes {
        /// Mean over classes and over IoU thresholds of 0.5 to 0.95 of the average precision.
        map: f64,
        /// Mean over classes of the average precision at IoU 0.5.
        ap50: f64,
    },
}

impl Score {
    /// The number that stands for all: 0 to 1, more is better.
    pub fn main(&self) -> f64 {
        match self {
            Self::Classes { top1, .. } => *top1,
            Self::Angle { within_5, .. } => *within_5,
            Self::Scenes { map, .. } => *map,
        }
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Classes { top1, .. } => write!(f, "top-1 {:.2} %", 100.0 * top1),
            Self::Angle { within_5, mean_error } => write!(
                f,
                "mean error {mean_error:.2} degrees, within 5 degrees {:.2} %",
                100.0 * within_5
            ),
            Self::Scenes { map, ap50 } => {
                write!(f, "AP at IoU 0.5 {:.2} %, mAP {:.2} %", 100.0 * ap50, 100.0 * map)
            }
        }
    }
}

/// The pictures of a data set that a task needs.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Channels, height and width.
    pub size: [usize; 3],
    /// Labels are below this.
    pub classes: usize,
}

/// The rules of a task. A network takes pictures of the sizes `picture` (channels, height, width)
/// and has `output` as the sizes of its output without the batch.
pub trait Rules {
    /// The name of the task.
    fn name(&self) -> &'static str;

    /// The name of the main number of a score.
    fn metric(&self) -> &'static str;

    /// The pictures to load; or what the task expects of the network, and what it found.
    fn source(&self, picture: [usize; 3], output: &[usize]) -> std::result::Result<Source, String>;

    /// Makes a picture of the network's size of the `i`-th one of `source`.
    fn draw(
        &self,
        source: &Pictures,
        i: usize,
        augmentation: Augmentation,
        picture: [usize; 3],
        random: &mut SplitMix64,
    ) -> (Vec<u8>, Label);

    /// The loss of outputs, `[pictures, elements]`.
    fn loss(&self, outputs: Tensor<2>, labels: &[Label], picture: [usize; 3]) -> Result<Loss>;

    /// The score of the outputs for pictures with these labels.
    fn score(&self, outputs: &[f32], labels: &[Label], picture: [usize; 3]) -> Score;

    /// For two networks, the share of `pictures` for which they choose the same; `None` if the task
    /// has no choice.
    fn same(&self, _a: &[f32], _b: &[f32], _pictures: usize) -> Option<f64> {
        None
    }
}

/// Seed of test pictures.
const TESTS: u64 = 0x7e57;

impl Task {
    /// The rules of the task.
    pub fn rules(self) -> &'static dyn Rules {
        match self {
            Self::Classes => &classes::Classes,
            Self::Angle => &angle::Angle,
            Self::Scenes => &scenes::Scenes,
        }
    }

    /// Reads `path` for `model`, a network with these sizes. Training pictures are those of the data
    /// set; test pictures are made by the task, always the same.
    ///
    /// Errors: a network that does not fit the task; those of [`Data::load`].
    pub fn load(
        self,
        path: &Path,
        model: &Path,
        picture: [usize; 3],
        output: &[usize],
        fit: Fit,
    ) -> Result<Data> {
        let source = self.rules().source(picture, output);
        let source =
            source.map_err(|what| Error::option("--task", format!("{self}: {}: {what}", model.display())))?;
        let mut data = Data::load(path, source.size, source.classes, fit)?;
        let mut tests = Pictures::none(picture);
        for i in 0..data.test.len() {
            let mut random = SplitMix64::new(seed(TESTS, 0, u64::try_from(i).unwrap_or(u64::MAX)));
            let plain = Augmentation::default();
            let (pixels, label) = self.rules().draw(&data.test, i, plain, picture, &mut random);
            tests.push(&pixels, label);
        }
        data.test = tests;
        Ok(data)
    }
}

/// Sizes as errors show them.
fn sizes(output: &[usize]) -> String {
    let all: Vec<String> = output.iter().map(ToString::to_string).collect();
    all.join(" x ")
}

/// A value between the pixels of a plane; 0 outside.
fn sample(plane: &[u8], [height, width]: [usize; 2], y: f32, x: f32) -> f32 {
    let (top, left) = (y.floor(), x.floor());
    let (down, right) = (y - top, x - left);
    let pixel = |y: f32, x: f32| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "checked to be pixels"
        )]
        let at = (y >= 0.0 && x >= 0.0 && y < height as f32 && x < width as f32)
            .then(|| y as usize * width + x as usize);
        f32::from(at.and_then(|at| plane.get(at)).copied().unwrap_or(0))
    };
    let row = |y: f32| pixel(y, left) * (1.0 - right) + pixel(y, left + 1.0) * right;
    row(top) * (1.0 - down) + row(top + 1.0) * down
}

/// The nearest value of a pixel.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 255")]
fn byte(v: f32) -> u8 {
    v.round().clamp(0.0, 255.0) as u8
}
