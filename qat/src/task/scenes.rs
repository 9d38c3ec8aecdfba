//! Detection: where pictures are on a scene (*SSD*, Liu et al., 2016).

use super::boxes::{Area, Object, SIDES, anchors, detections, matched, mean_average_precision};
use super::{Loss, Rules, Score, Source, byte, sample, sizes};
use crate::data::{Augmentation, Label, Pictures, below};
use crate::error::Result;
use crate::network::numbers;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use transformer_lite::unstable::llm::sampler::SplitMix64;

/// See [`Task::Scenes`](super::Task::Scenes).
pub(super) struct Scenes;

/// The largest number of objects on a scene.
const OBJECTS: usize = 4;
/// Height and width of scenes, in those of the pictures that are loaded for them.
const SCENE: usize = 3;
/// The longer side of an object, in shares of the shorter one of the scene: least, and most beyond.
const LENGTH: [f64; 2] = [0.2, 0.45];
/// Objects have at most this share in common. A place is looked for this number of times.
const OVERLAP: f32 = 0.25;
const TRIES: usize = 10;
/// Pixels of at least this value belong to an object.
const BRIGHT: u8 = 16;
/// Anchors without objects that are trained, in those with objects.
const NEGATIVES: usize = 3;

/// A part of a picture in pixels: first row and column, height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    at: [usize; 2],
    size: [usize; 2],
}

/// The part of a picture that has bright pixels; all of it if there are none.
fn bright(pixels: &[u8], [_, height, width]: [usize; 3]) -> Cut {
    let places = pixels.iter().enumerate().filter(|(_, v)| **v >= BRIGHT);
    let (mut least, mut most) = ([height, width], [0, 0]);
    for (i, _) in places {
        let at = [i % (height * width) / width, i % width];
        least = [least[0].min(at[0]), least[1].min(at[1])];
        most = [most[0].max(at[0] + 1), most[1].max(at[1] + 1)];
    }
    if most == [0, 0] {
        (least, most) = ([0, 0], [height, width]);
    }
    Cut {
        at: least,
        size: [most[0] - least[0], most[1] - least[1]],
    }
}

/// The size of an object of a picture, with a random longer side.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "at most the size of the scene"
)]
fn scaled(size: [usize; 2], scene: [usize; 2], random: &mut SplitMix64) -> [usize; 2] {
    let [least, more] = LENGTH;
    let longer = scene[0].min(scene[1]) as f64 * (least + more * random.next_f64());
    let factor = longer / size[0].max(size[1]).max(1) as f64;
    size.map(|n| ((n as f64 * factor).round() as usize).max(1))
}

#[expect(clippy::cast_precision_loss, reason = "numbers of pixels")]
fn area(cut: Cut, scene: [usize; 2]) -> Area {
    let share = |pixels: usize, axis: usize| pixels as f32 / scene[axis] as f32;
    Area {
        left: share(cut.at[1], 1),
        top: share(cut.at[0], 0),
        right: share(cut.at[1] + cut.size[1], 1),
        bottom: share(cut.at[0] + cut.size[0], 0),
    }
}

/// Scales a part of a plane into a part of a scene, where it is brighter.
#[expect(clippy::cast_precision_loss, reason = "numbers of pixels")]
fn paste(plane: &[u8], sides: [usize; 2], from: Cut, scene: &mut [u8], width: usize, to: Cut) {
    let place = |i: usize, axis: usize| {
        let scale = from.size[axis] as f32 / to.size[axis] as f32;
        from.at[axis] as f32 + (i as f32 + 0.5) * scale - 0.5
    };
    for y in 0..to.size[0] {
        for x in 0..to.size[1] {
            let value = byte(sample(plane, sides, place(y, 0), place(x, 1)));
            if let Some(pixel) = scene.get_mut((to.at[0] + y) * width + to.at[1] + x) {
                *pixel = value.max(*pixel);
            }
        }
    }
}

/// What the outputs for a batch should be.
struct Targets {
    /// For each anchor, 1 for its class or for the background.
    classes: Vec<f32>,
    boxes: Vec<f32>,
    /// 1 for anchors with objects.
    found: Vec<f32>,
}

impl Targets {
    fn of(labels: &[Label], anchors: &[Area], scores: usize) -> Self {
        let count = labels.len() * anchors.len();
        let mut all = Self {
            classes: vec![0.0; count * scores],
            boxes: Vec::with_capacity(count * SIDES),
            found: Vec::with_capacity(count),
        };
        let mut rows = all.classes.chunks_exact_mut(scores);
        for label in labels {
            for (object, anchor) in matched(anchors, &label.objects).into_iter().zip(anchors) {
                let class = object.map_or(scores - 1, |o| o.class);
                if let Some(one) = rows.next().and_then(|row| row.get_mut(class)) {
                    *one = 1.0;
                }
                all.boxes
                    .extend(object.map_or([0.0; SIDES], |o| o.area.encoded(*anchor)));
                all.found.push(f32::from(u8::from(object.is_some())));
            }
        }
        all
    }
}

/// 1 for anchors with objects, and for those without that have the largest losses: three times as
/// many in each picture.
fn chosen(losses: &[f32], found: &[f32], anchors: usize) -> Vec<f32> {
    let mut all = found.to_vec();
    let pictures = all.chunks_exact_mut(anchors.max(1));
    for (chosen, losses) in pictures.zip(losses.chunks_exact(anchors.max(1))) {
        let (with, mut without): (Vec<usize>, Vec<usize>) =
            (0..chosen.len()).partition(|i| chosen.get(*i).is_some_and(|c| *c > 0.0));
        let loss = |i: &usize| losses.get(*i).copied().unwrap_or(f32::NAN);
        without.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
        for i in without.into_iter().take(NEGATIVES * with.len()) {
            if let Some(c) = chosen.get_mut(i) {
                *c = 1.0;
            }
        }
    }
    all
}

impl Rules for Scenes {
    fn name(&self) -> &'static str {
        "scenes"
    }

    fn metric(&self) -> &'static str {
        "mAP"
    }

    fn source(&self, picture: [usize; 3], output: &[usize]) -> std::result::Result<Source, String> {
        let [channels, height, width] = picture;
        let expected = anchors(picture).len();
        match output {
            [found, numbers] if *found == expected && *numbers > SIDES + 1 => Ok(Source {
                size: [channels, height.div_ceil(SCENE), width.div_ceil(SCENE)],
                classes: numbers - SIDES - 1,
            }),
            found => Err(format!(
                "expected an output of {expected} anchors x (4 + classes + 1), found {}",
                sizes(found)
            )),
        }
    }

    fn draw(
        &self,
        source: &Pictures,
        i: usize,
        augmentation: Augmentation,
        [channels, height, width]: [usize; 3],
        random: &mut SplitMix64,
    ) -> (Vec<u8>, Label) {
        let mut pixels = vec![0; channels * height * width];
        let mut label = source.label(i);
        let [_, rows, columns] = source.size;
        for n in 0..=below(random, OBJECTS) {
            let i = if n == 0 { i } else { below(random, source.len()) };
            let picture = source.changed(i, augmentation, random);
            let from = bright(&picture, source.size);
            let size = scaled(from.size, [height, width], random);
            for _ in 0..TRIES {
                let at = [
                    below(random, height - size[0] + 1),
                    below(random, width - size[1] + 1),
                ];
                let to = Cut { at, size };
                let area = area(to, [height, width]);
                if label.objects.iter().any(|o| o.area.overlap(area) > OVERLAP) {
                    continue;
                }
                let planes = pixels.chunks_exact_mut(height * width);
                for (scene, plane) in planes.zip(picture.chunks_exact(rows * columns)) {
                    paste(plane, [rows, columns], from, scene, width, to);
                }
                let class = source.label(i).class;
                label.objects.push(Object { class, area });
                break;
            }
        }
        (pixels, label)
    }

    fn loss(&self, outputs: Tensor<2>, labels: &[Label], picture: [usize; 3]) -> Result<Loss> {
        let anchors = anchors(picture);
        let count = labels.len() * anchors.len();
        let [_, elements] = outputs.dims();
        let width = elements / anchors.len();
        let targets = Targets::of(labels, &anchors, width - SIDES);
        let device = outputs.device();
        let matched = targets.found.iter().filter(|v| **v > 0.0).count();
        let constant = |v: Vec<f32>, width: usize, device: &Device| {
            Tensor::<2>::from_data(TensorData::new(v, [count, width]), device).inner()
        };
        let rows = outputs.reshape([count, width]);
        let scores = rows.clone().slice([0..count, SIDES..width]);
        let classes = constant(targets.classes, width - SIDES, &device);
        let found = constant(targets.found.clone(), 1, &device);

        let plain = scores.clone().inner();
        let largest = plain.clone().max_dim(1);
        let hit = plain.greater_equal(largest).float() * classes.clone() * found.clone();

        let entropy = (log_softmax(scores, 1) * classes).sum_dim(1).neg();
        let losses = numbers(entropy.clone().inner())?;
        let kept = constant(chosen(&losses, &targets.found, anchors.len()), 1, &device);
        let boxes = rows.slice([0..count, 0..SIDES]) - constant(targets.boxes, SIDES, &device);
        let (wrong, near) = (boxes.clone().abs(), boxes.abs().clamp_max(1.0));
        let smooth = wrong - near.clone() + (near.clone() * near).mul_scalar(0.5);
        #[expect(clippy::cast_precision_loss, reason = "a number of anchors")]
        let scale = matched.max(1) as f32;
        Ok(Loss {
            loss: ((entropy * kept).sum() + (smooth * found).sum()).div_scalar(scale),
            right: hit.sum(),
            of: matched,
        })
    }

    fn score(&self, outputs: &[f32], labels: &[Label], picture: [usize; 3]) -> Score {
        let anchors = anchors(picture);
        let each = (outputs.len() / labels.len().max(1)).max(1);
        let found = outputs.chunks_exact(each).map(|o| detections(o, &anchors));
        let objects: Vec<Vec<Object>> = labels.iter().map(|l| l.objects.clone()).collect();
        let classes = (each / anchors.len().max(1)).saturating_sub(SIDES + 1);
        let [map, ap50] = mean_average_precision(&found.collect::<Vec<_>>(), &objects, classes);
        Score::Scenes { map, ap50 }
    }
}
