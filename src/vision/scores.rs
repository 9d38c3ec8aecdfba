//! The largest scores of classifiers, and their probabilities.

use crate::graph::{Graph, ValueId};
use crate::tensor::HostTensor;
use serde::Serialize;

/// Numbers of elements of one row among which the largest are listed.
const CLASSES: std::ops::RangeInclusive<usize> = 10..=100_000;

/// One of the largest elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Top {
    /// Index of the element.
    pub index: usize,
    /// The element.
    pub value: f64,
    /// Its probability: the softmax over all elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// Name of the class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// What the elements of an output are, by the node that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Sums of products, or logarithms of probabilities: softmax turns them into probabilities.
    Logits,
    /// Results of softmax or of a sigmoid.
    Probabilities,
    /// Anything else.
    Unknown,
}

impl Scores {
    /// Of an output of a model as imported. Nodes that keep the elements are skipped.
    pub fn of(graph: &Graph, output: ValueId) -> Self {
        let mut value = output;
        let mut steps = graph.nodes().count();
        while let Some((_, node)) = graph.producer(value).filter(|_| steps > 0) {
            steps -= 1;
            match node.op.name() {
                "Cast" | "DequantizeLinear" | "Dropout" | "Flatten" | "Identity" | "QuantizeLinear"
                | "Reshape" | "Squeeze" | "Unsqueeze" => match node.inputs.first() {
                    Some(Some(input)) => value = *input,
                    _ => break,
                },
                "Add" | "Conv" | "Gemm" | "LogSoftmax" | "MatMul" => return Self::Logits,
                "Softmax" | "Sigmoid" => return Self::Probabilities,
                _ => break,
            }
        }
        Self::Unknown
    }
}

/// The `count` largest elements of an output, the largest first, if it may be the scores of a
/// classifier: one row of floats, 10 or more. Else none. With `softmax` they have probabilities.
pub fn largest(tensor: &HostTensor, count: usize, softmax: bool) -> Vec<Top> {
    let shape = tensor.shape();
    let (1, Some(n)) = (shape.iter().rev().skip(1).product::<usize>(), shape.last()) else {
        return Vec::new();
    };
    if shape.len() > 2 || !CLASSES.contains(n) || !tensor.dtype().is_float() {
        return Vec::new();
    }
    let Ok(scores) = tensor.to_f64() else {
        return Vec::new();
    };
    let numbers = scores.iter().copied().enumerate().filter(|(_, v)| !v.is_nan());
    let mut all: Vec<(usize, f64)> = numbers.collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = all.first().map_or(0.0, |(_, v)| *v);
    let sum: f64 = all.iter().map(|(_, v)| (v - most).exp()).sum();
    let top = all.into_iter().take(count).map(|(index, value)| Top {
        index,
        value,
        probability: softmax
            .then(|| (value - most).exp() / sum)
            .filter(|p| p.is_finite()),
        label: None,
    });
    top.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_one_row_are_listed() {
        let mut scores: Vec<f32> = (0..12u8).map(|i| f32::from(i % 7)).collect();
        scores[2] = f32::NAN;
        let of = |shape: &[usize]| {
            let top = largest(&HostTensor::from_f32(shape, &scores).unwrap(), 5, false);
            top.iter().map(|t| t.index).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1, 12]), [6, 5, 4, 11, 3]);
        assert_eq!(of(&[12]), of(&[1, 12]));
        for shape in [&[2, 6][..], &[12, 1], &[1, 1, 12]] {
            assert!(of(shape).is_empty(), "{shape:?}");
        }
        let integers = HostTensor::from_i64(&[12], &[1; 12]).unwrap();
        assert!(largest(&integers, 5, false).is_empty());
    }

    #[test]
    fn probabilities_sum_to_one_and_do_not_overflow() {
        let mut scores = vec![0.0f32; 10];
        (scores[3], scores[7]) = (1000.0, 1000.0 + 2f32.ln());
        let tensor = HostTensor::from_f32(&[1, 10], &scores).unwrap();
        let top = largest(&tensor, 20, true);
        assert_eq!((top.len(), top[0].index, top[1].index), (10, 7, 3));
        let sum: f64 = top.iter().filter_map(|t| t.probability).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert!((top[0].probability.unwrap() - 2.0 / 3.0).abs() < 1e-4, "{top:?}");
        assert_eq!(largest(&tensor, 1, false)[0].probability, None);
        let infinite = HostTensor::from_f32(&[10], &[f32::INFINITY; 10]).unwrap();
        assert_eq!(largest(&infinite, 1, true)[0].probability, None);
    }

    #[test]
    fn json_has_what_is_known() {
        let top = largest(&HostTensor::from_f32(&[10], &[0.5; 10]).unwrap(), 2, false);
        let json = serde_json::to_value(&top).unwrap();
        assert_eq!((&json[0]["index"], &json[1]["value"]), (&0.into(), &0.5.into()));
        assert!(json[1].get("label").is_none() && json[1].get("probability").is_none());
    }
}
