//! How gradients change parameters.

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

type T4 = Tensor<4>;

/// The method of gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Stochastic gradient descent with momentum.
    #[default]
    Sgd,
    /// Gradients are divided by the root of a moving average of their squares.
    Rmsprop,
    /// Gradients are divided by the root of the sum of their squares; without momentum.
    Adagrad,
}

/// Prefixes of the names of a checkpoint's tensors.
const MOMENTUM: &str = "momentum.";
const SQUARES: &str = "square.";
/// What the mean square of RMSProp keeps at each step, what it starts with, and what is added to it
/// (appendix D.2 of the paper; the start is that of TensorFlow 1).
const SQUARE_DECAY: f64 = 0.9;
const FIRST_SQUARE: f64 = 1.0;
const EPSILON: f64 = 1.0;
/// What the sum of squares of Adagrad starts with.
const FIRST_SUM: f64 = 0.1;

impl Optimizer {
    /// Momentum if none is given; `None` for an optimizer without momentum.
    pub fn usual_momentum(self) -> Option<f64> {
        (self != Self::Adagrad).then_some(0.9)
    }

    /// For each tensor that is kept for a parameter: the prefix of its name in checkpoints, and what
    /// it starts with.
    fn kept(self) -> &'static [(&'static str, f64)] {
        match self {
            Self::Sgd => &[(MOMENTUM, 0.0)],
            Self::Rmsprop => &[(MOMENTUM, 0.0), (SQUARES, FIRST_SQUARE)],
            Self::Adagrad => &[(SQUARES, FIRST_SUM)],
        }
    }

    /// The prefixes of the names of what is kept.
    pub fn prefixes(self) -> impl Iterator<Item = &'static str> {
        self.kept().iter().map(|(prefix, _)| *prefix)
    }

    /// What is kept before the first step: a list of tensors for each of [`prefixes`](Self::prefixes).
    pub fn first(self, parameters: &[T4], device: &Device) -> Vec<Vec<T4>> {
        let filled = |v: f64| parameters.iter().map(move |p| Tensor::full(p.dims(), v, device));
        self.kept().iter().map(|(_, v)| filled(*v).collect()).collect()
    }

    /// Changes a parameter by a gradient. `kept` has a tensor for each of
    /// [`prefixes`](Self::prefixes); others are left as they are.
    pub fn step(self, value: &mut T4, kept: &mut [&mut T4], gradient: T4, rate: f64, momentum: f64) {
        match (self, kept) {
            (Self::Sgd, [moment]) => {
                **moment = moment.clone().mul_scalar(momentum) + gradient;
                *value = value.clone() - moment.clone().mul_scalar(rate);
            }
            (Self::Rmsprop, [moment, square]) => {
                let new = gradient.clone() * gradient.clone();
                **square = square.clone().mul_scalar(SQUARE_DECAY) + new.mul_scalar(1.0 - SQUARE_DECAY);
                let scaled = gradient / square.clone().add_scalar(EPSILON).sqrt();
                **moment = moment.clone().mul_scalar(momentum) + scaled.mul_scalar(rate);
                *value = value.clone() - moment.clone();
            }
            (Self::Adagrad, [sum]) => {
                **sum = sum.clone() + gradient.clone() * gradient.clone();
                *value = value.clone() - (gradient / sum.clone().sqrt()).mul_scalar(rate);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::numbers;
    use burn::tensor::TensorData;

    /// Values after each of two steps with the gradients (2, -1) and (1, 0.5), from (1, 1), with a
    /// learning rate of 0.1 and momentum 0.5.
    fn two_steps(optimizer: Optimizer) -> [Vec<f32>; 2] {
        let device = Device::flex();
        let tensor = |v: [f32; 2]| T4::from_data(TensorData::new(v.to_vec(), [1, 1, 1, 2]), &device);
        let mut value = tensor([1.0, 1.0]);
        let mut kept = optimizer.first(std::slice::from_ref(&value), &device);
        [[2.0, -1.0], [1.0, 0.5]].map(|gradient| {
            let mut kept: Vec<&mut T4> = kept.iter_mut().flatten().collect();
            optimizer.step(&mut value, &mut kept, tensor(gradient), 0.1, 0.5);
            numbers(value.clone()).unwrap()
        })
    }

    fn assert_near(found: &[Vec<f32>; 2], expected: [[f32; 2]; 2]) {
        for (f, e) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((f - e).abs() < 1e-6, "found {found:?}, expected {expected:?}");
        }
    }

    #[test]
    fn steps_of_sgd_equal_numbers_by_hand() {
        // Momenta (2, -1), then (1 + 1, -0.5 + 0.5).
        assert_near(&two_steps(Optimizer::Sgd), [[0.8, 1.1], [0.6, 1.1]]);
    }

    #[test]
    fn steps_of_rmsprop_equal_numbers_by_hand() {
        // Mean squares (1.3, 1), then (1.27, 0.925); 1 is added to them.
        let first = [0.2 / 2.3f32.sqrt(), -0.1 / 2f32.sqrt()];
        let second = [
            0.5 * first[0] + 0.1 / 2.27f32.sqrt(),
            0.5 * first[1] + 0.05 / 1.925f32.sqrt(),
        ];
        let after = [1.0 - first[0], 1.0 - first[1]];
        assert_near(
            &two_steps(Optimizer::Rmsprop),
            [after, [after[0] - second[0], after[1] - second[1]]],
        );
    }

    #[test]
    fn steps_of_adagrad_equal_numbers_by_hand() {
        // Sums of squares (4.1, 1.1), then (5.1, 1.35).
        let after = [1.0 - 0.2 / 4.1f32.sqrt(), 1.0 + 0.1 / 1.1f32.sqrt()];
        let last = [after[0] - 0.1 / 5.1f32.sqrt(), after[1] - 0.05 / 1.35f32.sqrt()];
        assert_near(&two_steps(Optimizer::Adagrad), [after, last]);
    }
}
