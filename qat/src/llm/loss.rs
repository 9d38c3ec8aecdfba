//! Losses of next-token distributions, with their gradients. Gradients are computed here, so that
//! automatic differentiation keeps no further tensors as large as the logits.

use crate::error::Result;
use crate::network::numbers;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// Sums over tokens, and the gradient of the loss.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Sum of losses over tokens, and of `KL(teacher || student)` in nats; the latter is equal to
    /// the former without a teacher.
    pub sums: Tensor<1>,
    /// Gradient of the sum of losses by the logits.
    pub gradient: Tensor<2>,
}

/// Confidence-aware divergence (CAKLD): `c KL(student || teacher) + (1 - c) KL(teacher || student)`
/// with `c = confidence`.
pub fn divergence(student: Tensor<2>, teacher: Tensor<2>, confidence: f64) -> Loss {
    let (log_s, log_t) = (log_softmax(student, 1), log_softmax(teacher, 1));
    let (s, t) = (log_s.clone().exp(), log_t.clone().exp());
    let difference = log_s - log_t;
    let reverse = (s.clone() * difference.clone()).sum_dim(1);
    let forward = (t.clone() * difference.clone()).sum_dim(1).neg();
    let gradient = (s.clone() * (difference - reverse.clone())).mul_scalar(confidence)
        + (s - t).mul_scalar(1.0 - confidence);
    let loss = reverse.mul_scalar(confidence) + forward.clone().mul_scalar(1.0 - confidence);
    Loss {
        sums: Tensor::cat(vec![loss.sum(), forward.sum()], 0),
        gradient,
    }
}

/// Cross entropy with the next tokens.
pub fn cross_entropy(student: Tensor<2>, next: Tensor<1, Int>) -> Loss {
    let [count, vocab] = student.dims();
    let log_s = log_softmax(student, 1);
    let next = next.reshape([count, 1]);
    let loss = log_s.clone().gather(1, next.clone()).neg().sum();
    let range = Tensor::<1, Int>::arange(0..i64::try_from(vocab).unwrap_or(i64::MAX), &log_s.device());
    let right = next.equal(range.reshape([1, vocab])).float();
    Loss {
        sums: Tensor::cat(vec![loss.clone(), loss], 0),
        gradient: log_s.exp() - right,
    }
}

/// Sum of the probabilities of the next tokens.
pub fn confidence(logits: Tensor<2>, next: Tensor<1, Int>) -> Result<f64> {
    let count = logits.dims()[0];
    let chosen = log_softmax(logits, 1).gather(1, next.reshape([count, 1])).exp();
    Ok(numbers(chosen)?.iter().map(|p| f64::from(*p)).sum())
}
