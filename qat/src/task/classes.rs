//! Classification.

use super::{Loss, Rules, Score, Source, sizes};
use crate::data::{Augmentation, Label, Pictures};
use crate::error::Result;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Tensor, TensorData};
use transformer_lite::unstable::llm::sampler::SplitMix64;

/// See [`Task::Classes`](super::Task::Classes).
pub(super) struct Classes;

impl Rules for Classes {
    fn name(&self) -> &'static str {
        "classes"
    }

    fn metric(&self) -> &'static str {
        "top-1"
    }

    fn source(&self, picture: [usize; 3], output: &[usize]) -> std::result::Result<Source, String> {
        let classes = output.iter().product();
        if output.iter().any(|n| *n != classes && *n != 1) {
            let found = sizes(output);
            return Err(format!("expected one output for each class, found {found}"));
        }
        Ok(Source {
            size: picture,
            classes,
        })
    }

    fn draw(
        &self,
        source: &Pictures,
        i: usize,
        augmentation: Augmentation,
        _picture: [usize; 3],
        random: &mut SplitMix64,
    ) -> (Vec<u8>, Label) {
        (source.changed(i, augmentation, random), source.label(i))
    }

    fn loss(&self, outputs: Tensor<2>, labels: &[Label], _picture: [usize; 3]) -> Result<Loss> {
        let [_, classes] = outputs.dims();
        let labels: Vec<usize> = labels.iter().map(|l| l.class).collect();
        let (loss, right) = cross_entropy(outputs, &labels, classes);
        Ok(Loss {
            loss,
            right,
            of: labels.len(),
        })
    }

    fn score(&self, outputs: &[f32], labels: &[Label], _picture: [usize; 3]) -> Score {
        let classes = outputs.len() / labels.len().max(1);
        Score::Classes {
            top1: top1(outputs, classes, labels),
            mean_ap: mean_average_precision(outputs, classes, labels),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "numbers of pictures")]
    fn same(&self, a: &[f32], b: &[f32], pictures: usize) -> Option<f64> {
        let classes = (a.len() / pictures.max(1)).max(1);
        let rows = a.chunks_exact(classes).zip(b.chunks_exact(classes));
        let same = rows.filter(|(a, b)| largest(a) == largest(b)).count();
        Some(same as f64 / pictures.max(1) as f64)
    }
}

/// The mean cross entropy, and the number of rows whose largest logit is that of the label; each
/// with one element.
pub fn cross_entropy(logits: Tensor<2>, labels: &[usize], classes: usize) -> (Tensor<1>, Tensor<1>) {
    let mut targets = vec![0f32; labels.len() * classes];
    for (row, label) in targets.chunks_exact_mut(classes.max(1)).zip(labels) {
        if let Some(v) = row.get_mut(*label) {
            *v = 1.0;
        }
    }
    let shape = [labels.len(), classes];
    let targets = Tensor::<2>::from_data(TensorData::new(targets, shape), &logits.device()).inner();
    let plain = logits.clone().inner();
    let largest = plain.clone().max_dim(1);
    let hit = plain.greater_equal(largest).float() * targets.clone();
    #[expect(clippy::cast_precision_loss, reason = "a batch size")]
    let count = labels.len() as f32;
    let loss = (log_softmax(logits, 1) * targets).sum().neg().div_scalar(count);
    (loss, hit.sum())
}

/// The position of the largest element.
fn largest(row: &[f32]) -> usize {
    let best = row
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
    best.map_or(0, |(i, _)| i)
}

/// The share of rows whose largest element is at the position of the label.
#[expect(clippy::cast_precision_loss, reason = "numbers of pictures")]
fn top1(logits: &[f32], classes: usize, labels: &[Label]) -> f64 {
    let rows = logits.chunks_exact(classes.max(1)).zip(labels);
    let correct = rows.filter(|(row, label)| largest(row) == label.class).count();
    correct as f64 / labels.len().max(1) as f64
}

/// The mean over the classes of their average precision: that of the pictures with the label, in the
/// order of their probabilities. Classes without pictures do not count.
#[expect(clippy::cast_precision_loss, reason = "numbers of pictures")]
fn mean_average_precision(logits: &[f32], classes: usize, labels: &[Label]) -> f64 {
    let rows = logits.chunks_exact(classes.max(1));
    let probabilities: Vec<Vec<f64>> = rows
        .map(|row| {
            let most = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
            let all: Vec<f64> = row.iter().map(|v| f64::from(v - most).exp()).collect();
            let sum: f64 = all.iter().sum();
            all.into_iter().map(|v| v / sum).collect()
        })
        .collect();
    let precisions = (0..classes).filter_map(|class| {
        let mut order: Vec<(f64, bool)> = probabilities
            .iter()
            .zip(labels)
            .map(|(row, label)| (row.get(class).copied().unwrap_or(f64::NAN), label.class == class))
            .collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let ranks = order.iter().enumerate().filter(|(_, (_, hit))| *hit);
        let precisions = ranks
            .enumerate()
            .map(|(n, (rank, _))| (n + 1) as f64 / (rank + 1) as f64);
        let all: Vec<f64> = precisions.collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    });
    let all: Vec<f64> = precisions.collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}
