//! Tensors of any rank up to 4, as `burn` tensors of rank 4.

use burn::tensor::Tensor;

/// A tensor with 1 to 4 axes. Its `burn` tensor has further axes of size 1 in front, so that
/// broadcasting follows the rules of ONNX, which aligns the last axes.
#[derive(Clone, Debug)]
pub struct Value {
    pub tensor: Tensor<4>,
    pub rank: usize,
}

/// Number of axes of all tensors.
pub const RANK: usize = 4;

/// A shape with leading sizes of 1; `None` for more than 4 axes.
pub fn padded(shape: &[usize]) -> Option<[usize; RANK]> {
    let lead = RANK.checked_sub(shape.len())?;
    let mut out = [1; RANK];
    out.iter_mut().skip(lead).zip(shape).for_each(|(to, n)| *to = *n);
    Some(out)
}

impl Value {
    /// The sizes without the leading ones.
    pub fn shape(&self) -> Vec<usize> {
        let dims = self.tensor.dims();
        dims.into_iter().skip(RANK.saturating_sub(self.rank)).collect()
    }

    /// The position of an axis in the `burn` tensor.
    pub fn axis(&self, axis: usize) -> usize {
        axis + RANK.saturating_sub(self.rank)
    }

    /// The same elements in another shape.
    pub fn reshaped(self, shape: [usize; RANK], rank: usize) -> Self {
        Self {
            tensor: self.tensor.reshape(shape),
            rank,
        }
    }
}
