//! Fake quantization: values are rounded to what integers can represent, but stay floats. Gradients
//! pass unchanged where the integer did not saturate (straight-through estimator).
//!
//! Ranges and rounding are those of the engine's quantizer, so that an exported model holds the
//! same numbers: activations have a zero point, nudged so that 0 is exact; weights are symmetric.

use burn::tensor::Tensor;
use transformer_lite::unstable::quant::fixed::Affine;

/// A tensor with leading axes of size 1; see [`Value`](crate::value::Value).
type T4 = Tensor<4>;

/// The smallest scale of weights; see `transformer_lite_convert::int8`.
const LEAST_SCALE: f32 = 1.0 / 16_777_216.0;
/// The largest bias integer, which leaves room for the sum of products.
const LARGEST_BIAS: f32 = 1_073_741_824.0;

/// The number of bits of an integer type, 4 to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Bits(u8);

impl Bits {
    /// 8 bits.
    pub const EIGHT: Self = Self(8);

    /// The integers of activations: -128 and the `2^bits - 1` above it.
    pub fn activations(self) -> [i32; 2] {
        [-128, (1 << self.0) - 129]
    }

    /// The largest weight; the smallest is its negative (narrow range).
    pub fn largest_weight(self) -> i8 {
        i8::MAX >> (8 - self.0)
    }
}

impl TryFrom<u8> for Bits {
    type Error = String;

    fn try_from(bits: u8) -> Result<Self, String> {
        match bits {
            4..=8 => Ok(Self(bits)),
            _ => Err(format!("expected 4 to 8 bits, found {bits}")),
        }
    }
}

impl std::str::FromStr for Bits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bits: u8 = text.parse().map_err(|_| "expected 4 to 8".to_owned())?;
        Self::try_from(bits)
    }
}

impl From<Bits> for u8 {
    fn from(bits: Bits) -> u8 {
        bits.0
    }
}

impl std::fmt::Display for Bits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// How an activation is quantized.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Grid {
    pub scale: f32,
    pub zero: i32,
    pub least: i32,
    pub most: i32,
}

impl Grid {
    /// The grid of a range, nudged so that 0 is on it; `None` if it has no usable scale.
    pub fn of(low: f32, high: f32, bits: Bits) -> Option<Self> {
        let [least, most] = bits.activations();
        Affine::nudged(low, high, least, most).map(|a| Self::with(a, bits))
    }

    /// A grid with this scale and zero point.
    pub fn with(affine: Affine, bits: Bits) -> Self {
        let [least, most] = bits.activations();
        Self {
            scale: affine.scale,
            zero: affine.zero,
            least,
            most,
        }
    }

    /// Scale and zero point.
    pub fn affine(self) -> Affine {
        Affine {
            scale: self.scale,
            zero: self.zero,
        }
    }

    /// The nearest numbers on the grid, half to even as in `QuantizeLinear`. The gradient is 1 where
    /// the integer is within the range, ends included, else 0.
    #[expect(clippy::cast_precision_loss, reason = "at most 8 bits")]
    pub fn fake(self, x: T4) -> T4 {
        let (zero, least, most) = (self.zero as f32, self.least as f32, self.most as f32);
        let plain = x.clone().inner();
        let code = plain.clone().div_scalar(self.scale).round().add_scalar(zero);
        let kept = code.clone().clamp(least, most);
        let inside = kept.clone().equal(code).float();
        let fake = kept.sub_scalar(zero).mul_scalar(self.scale);
        fake + (x - plain) * inside
    }
}

/// The scales of weights: one for each index of `axis`, or one for all if `None`. `least` are lower
/// bounds for each index, with which the biases fit their integers.
pub fn weight_scales(w: &T4, axis: Option<usize>, bits: Bits, least: Option<T4>) -> T4 {
    let mut scale = (w.clone().inner().abs()).div_scalar(f32::from(bits.largest_weight()));
    if let Some(least) = least {
        scale = scale.max_pair(least);
    }
    for other in (0..4).filter(|a| Some(*a) != axis) {
        scale = scale.max_dim(other);
    }
    scale.clamp_min(LEAST_SCALE)
}

/// The lower bounds of weight scales for a bias that is added to products with an input of the scale
/// `input`.
pub fn least_scales(bias: T4, input: f32) -> T4 {
    bias.inner().abs().div_scalar(input * LARGEST_BIAS)
}

/// Weights rounded to multiples of their scales. All of them are within the range, so the gradient
/// is 1 everywhere.
pub fn fake_weights(w: T4, scales: T4, bits: Bits) -> T4 {
    let largest = f32::from(bits.largest_weight());
    let plain = w.clone().inner();
    let code = plain.clone().div(scales.clone()).round().clamp(-largest, largest);
    code.mul(scales) + (w - plain)
}

/// A moving average of the smallest and largest values of batches. It starts with the first batch.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Range {
    pub low: f32,
    pub high: f32,
}

impl Range {
    /// The range after a batch; the old one keeps the share `decay`.
    pub fn after(old: Option<Self>, low: f32, high: f32, decay: f32) -> Self {
        let mixed = |old: f32, new: f32| decay * old + (1.0 - decay) * new;
        match old {
            None => Self { low, high },
            Some(old) => Self {
                low: mixed(old.low, low),
                high: mixed(old.high, high),
            },
        }
    }
}
