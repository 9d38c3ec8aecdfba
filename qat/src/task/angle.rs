//! Regression: by how many degrees a picture is turned.

use super::{Loss, Rules, Score, Source, byte, sample};
use crate::data::{Augmentation, Label, Pictures};
use crate::error::Result;
use burn::tensor::{Tensor, TensorData};
use transformer_lite::unstable::llm::sampler::SplitMix64;

/// See [`Task::Angle`](super::Task::Angle).
pub(super) struct Angle;

/// The largest angle in degrees, and the unit of the output.
const LARGEST: f32 = 45.0;
/// The loss is the mean squared error in units of this number of degrees. With that of the output,
/// the usual learning rates diverge.
const LOSS_UNIT: f32 = 180.0;
/// An angle is found if it differs by at most this number of degrees.
const NEAR: f32 = 5.0;

/// A plane turned clockwise by `degrees` about its center.
fn turned(plane: &[u8], [height, width]: [usize; 2], degrees: f32) -> Vec<u8> {
    let (sin, cos) = degrees.to_radians().sin_cos();
    #[expect(clippy::cast_precision_loss, reason = "numbers of pixels")]
    let [middle_y, middle_x] = [height, width].map(|n| (n as f32 - 1.0) / 2.0);
    let mut out = Vec::with_capacity(plane.len());
    for i in 0..height * width {
        #[expect(clippy::cast_precision_loss, reason = "numbers of pixels")]
        let (y, x) = ((i / width) as f32 - middle_y, (i % width) as f32 - middle_x);
        let (from_y, from_x) = (y * cos - x * sin, x * cos + y * sin);
        out.push(byte(sample(
            plane,
            [height, width],
            from_y + middle_y,
            from_x + middle_x,
        )));
    }
    out
}

impl Rules for Angle {
    fn name(&self) -> &'static str {
        "angle"
    }

    fn metric(&self) -> &'static str {
        "within 5 degrees"
    }

    fn source(&self, picture: [usize; 3], output: &[usize]) -> std::result::Result<Source, String> {
        match output.iter().product() {
            1 => Ok(Source {
                size: picture,
                classes: usize::MAX,
            }),
            found => Err(format!("expected one output, found {found}")),
        }
    }

    fn draw(
        &self,
        source: &Pictures,
        i: usize,
        augmentation: Augmentation,
        [_, height, width]: [usize; 3],
        random: &mut SplitMix64,
    ) -> (Vec<u8>, Label) {
        let upright = source.changed(i, augmentation, random);
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let angle = LARGEST * (2.0 * random.next_f64() - 1.0) as f32;
        let planes = upright.chunks_exact(height * width);
        let pixels = planes.flat_map(|plane| turned(plane, [height, width], angle));
        (
            pixels.collect(),
            Label {
                angle,
                ..source.label(i)
            },
        )
    }

    fn loss(&self, outputs: Tensor<2>, labels: &[Label], _picture: [usize; 3]) -> Result<Loss> {
        let units: Vec<f32> = labels.iter().map(|l| l.angle / LARGEST).collect();
        let units = TensorData::new(units, [labels.len(), 1]);
        let wrong = outputs.clone() - Tensor::<2>::from_data(units, &outputs.device()).inner();
        let scale = LARGEST / LOSS_UNIT;
        let near = wrong.clone().inner().abs().lower_equal_elem(NEAR / LARGEST);
        Ok(Loss {
            loss: (wrong.clone() * wrong).mean().mul_scalar(scale * scale),
            right: near.float().sum(),
            of: labels.len(),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of pictures")]
    fn score(&self, outputs: &[f32], labels: &[Label], _picture: [usize; 3]) -> Score {
        let wrong = || {
            outputs
                .iter()
                .zip(labels)
                .map(|(v, l)| (v * LARGEST - l.angle).abs())
        };
        let count = labels.len().max(1) as f64;
        Score::Angle {
            within_5: wrong().filter(|v| *v <= NEAR).count() as f64 / count,
            mean_error: wrong().map(f64::from).sum::<f64>() / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_turned_clockwise() {
        let plane = [0, 9, 0, 0, 5, 0, 0, 0, 0];
        assert_eq!(turned(&plane, [3, 3], 90.0), [0, 0, 0, 0, 5, 9, 0, 0, 0]);
        let half = turned(&plane, [3, 3], 45.0);
        assert!(half[2] > half[0] && half[4] == 5, "{half:?}");
    }

    #[test]
    fn the_loss_and_score_of_angles_equal_numbers_by_hand() {
        let labels = [9.0, -45.0, 0.0].map(|angle| Label {
            angle,
            ..Label::default()
        });
        let outputs = [0.3, -0.95, -0.2];
        let score = Angle.score(&outputs, &labels, [1, 1, 1]);
        let Score::Angle { within_5, mean_error } = score else {
            panic!("{score:?}")
        };
        assert!((within_5 - 2.0 / 3.0).abs() < 1e-9 && (mean_error - 5.25).abs() < 1e-5);
        let x = Tensor::from_data(TensorData::new(outputs.to_vec(), [3, 1]), &Default::default());
        let made = Angle.loss(x, &labels, [1, 1, 1]).unwrap();
        let found = crate::network::numbers(Tensor::cat(vec![made.loss, made.right], 0)).unwrap();
        assert!(
            (found[0] - (0.01 + 0.0025 + 0.04) / 48.0).abs() < 1e-7,
            "{found:?}"
        );
        assert_eq!((found[1], made.of), (2.0, 3));
    }
}
