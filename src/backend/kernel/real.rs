//! Number types of the evaluator: 32-bit and 64-bit floats, signed and unsigned 64-bit integers.

use crate::num::narrowed;
use crate::tensor::{DType, HostTensor, TensorError};
use half::{bf16, f16};
use std::borrow::Cow;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Rem, Sub};

/// A float: `f32`, or `f64` if an expression has elements of that type.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
{
    /// The nearest value to a constant.
    fn of(v: f64) -> Self;
    fn to_f64(self) -> f64;
    /// Applies a function that is implemented for both types.
    fn apply(narrow: fn(f32) -> f32, wide: fn(f64) -> f64, x: Self) -> Self;
    fn powf(self, exponent: Self) -> Self;
    fn copysign(self, sign: Self) -> Self;
    fn erf(self) -> Self;
    fn is_nan(self) -> bool;
    fn is_infinite(self) -> bool;
    /// Truncates towards zero and saturates.
    fn to_i64(self) -> i64;
    /// Like [`Real::to_i64`], for unsigned integers.
    fn to_u64(self) -> u64;
    fn of_i64(v: i64) -> Self;
    fn of_u64(v: u64) -> Self;
    /// Reads the elements of a float tensor.
    fn read(t: &HostTensor) -> Result<Cow<'_, [Self]>, TensorError>;
    /// Creates a tensor of a float type.
    fn write(dtype: DType, shape: &[usize], data: &[Self]) -> Result<HostTensor, TensorError>;
}

macro_rules! real {
    ($t:ty, $place:tt, $read:ident, $write:ident, $erf:ident) => {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            clippy::cast_lossless,
            trivial_numeric_casts,
            reason = "rounding to the type is intended"
        )]
        impl Real for $t {
            fn of(v: f64) -> Self {
                v as Self
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn apply(narrow: fn(f32) -> f32, wide: fn(f64) -> f64, x: Self) -> Self {
                ((narrow, wide).$place)(x)
            }
            fn powf(self, exponent: Self) -> Self {
                self.powf(exponent)
            }
            fn copysign(self, sign: Self) -> Self {
                self.copysign(sign)
            }
            fn erf(self) -> Self {
                $erf(self)
            }
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            fn is_infinite(self) -> bool {
                self.is_infinite()
            }
            fn to_i64(self) -> i64 {
                self as i64
            }
            fn to_u64(self) -> u64 {
                self as u64
            }
            fn of_i64(v: i64) -> Self {
                v as Self
            }
            fn of_u64(v: u64) -> Self {
                v as Self
            }
            fn read(t: &HostTensor) -> Result<Cow<'_, [Self]>, TensorError> {
                t.$read()
            }
            fn write(dtype: DType, shape: &[usize], data: &[Self]) -> Result<HostTensor, TensorError> {
                HostTensor::$write(dtype, shape, data)
            }
        }
    };
}

real!(f32, 0, to_f32, from_floats, erf_narrow);
real!(f64, 1, to_f64, from_f64s, erf_wide);

/// Rounds a number to a float type.
pub fn rounded<F: Real>(dtype: DType, v: F) -> F {
    match dtype {
        DType::F32 => F::of(f64::from(f32::of(v.to_f64()))),
        DType::F16 => F::of(f16::from_f32(narrowed(v.to_f64())).to_f64()),
        DType::BF16 => F::of(bf16::from_f32(narrowed(v.to_f64())).to_f64()),
        _ => v,
    }
}

pub trait Integer: Copy + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> {
    fn of(v: bool) -> Self;
    fn wrapping_add(self, b: Self) -> Self;
    fn wrapping_sub(self, b: Self) -> Self;
    fn wrapping_mul(self, b: Self) -> Self;
    /// `b` must not be 0. The smallest integer divided by -1 wraps around.
    fn wrapping_div(self, b: Self) -> Self;
    fn checked_rem(self, b: Self) -> Option<Self>;
    fn checked_shl(self, by: u32) -> Option<Self>;
    fn checked_shr(self, by: u32) -> Option<Self>;
    /// The value as a shift count; `None` if it is out of range.
    fn as_shift(self) -> Option<u32>;
}

macro_rules! integer {
    ($t:ty) => {
        impl Integer for $t {
            fn of(v: bool) -> Self {
                Self::from(v)
            }
            fn as_shift(self) -> Option<u32> {
                u32::try_from(self).ok()
            }
            integer!(@forward wrapping_add wrapping_sub wrapping_mul wrapping_div => Self);
            integer!(@forward checked_rem => Option<Self>);
            fn checked_shl(self, by: u32) -> Option<Self> {
                self.checked_shl(by)
            }
            fn checked_shr(self, by: u32) -> Option<Self> {
                self.checked_shr(by)
            }
        }
    };
    (@forward $($name:ident)* => $out:ty) => {
        $(fn $name(self, b: Self) -> $out {
            self.$name(b)
        })*
    };
}

integer!(i32);
integer!(i64);
integer!(u64);

/// The error function, precise to about one ULP: an odd polynomial near 0, elsewhere 1 minus the
/// exponential of a polynomial (N. Juffa's `erff`; the kernels use the same formula).
fn erf_narrow(x: f32) -> f32 {
    let (t, s) = (x.abs(), x * x);
    if t > 0.927_734_4 {
        let t = t.min(10.0);
        let s = t * t;
        let r = (-1.728_534_7e-5 * t + 3.831_972e-4) * s + (-3.883_964_7e-3 * t + 2.425_462_2e-2);
        let r = ((r * t - 1.067_778_8e-1) * t - 6.348_467e-1) * t - 1.287_175_1e-1;
        (1.0 - (r * t - t).exp()).copysign(x)
    } else {
        let r = (((-5.967_617e-4 * s + 4.991_194e-3) * s - 2.676_813_5e-2) * s + 1.128_199_3e-1) * s
            - 3.761_253_4e-1;
        (r * s + 1.283_791_7e-1) * x + x
    }
}

/// The error function by its series without alternating signs, which avoids cancellation. From 6 on
/// the result is 1.
fn erf_wide(x: f64) -> f64 {
    if x.is_nan() || x.abs() >= 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 2.0;
        term *= 2.0 * x * x / n;
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_function() {
        // Values of the error function to 17 digits.
        for (x, y) in [
            (0.0f32, 0.0f64),
            (0.1, 0.112_462_916_018_284_89),
            (0.5, 0.520_499_877_813_046_5),
            (0.9, 0.796_908_212_422_832),
            (1.0, 0.842_700_792_949_714_9),
            (1.5, 0.966_105_146_475_310_8),
            (2.5, 0.999_593_047_982_555),
            (3.5, 0.999_999_256_901_627_7),
            (30.0, 1.0),
        ] {
            for (x, y) in [(x, y), (-x, -y)] {
                let found = f64::from(Real::erf(x));
                let wide = (Real::erf(f64::from(x)) - y).abs();
                // The values are those at decimal numbers, which f32 has not.
                assert!(wide <= 1e-7 * y.abs(), "erf({x}) = {y}");
                assert!(
                    (found - y).abs() <= 2e-7 * y.abs(),
                    "erf({x}) = {y}, found {found}"
                );
            }
        }
        assert_eq!(Real::erf(f32::INFINITY), 1.0);
    }
}
