//! 8-bit and 4-bit floats: conversion between their bit patterns (codes) and values.
//!
//! A format has a sign, an exponent and a mantissa. `F8E8M0` is the exception: it is an exponent
//! alone, a power of two. Conversion rounds to nearest, ties to the even code. [`Rounding`] decides
//! what happens beyond the largest value.

use super::DType;

/// How values are rounded to codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounding {
    /// Values that are too large, infinities included, become the largest value. Otherwise they
    /// become infinity or, in formats without one, NaN. `F4E2M1` has neither and always saturates.
    pub saturate: bool,
    /// How `F8E8M0` rounds a value between two powers of two.
    pub powers: Powers,
}

/// Rounding of a number between two powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Powers {
    /// To the larger neighbor.
    Up,
    /// To the smaller neighbor.
    Down,
    /// The nearer; ties go up.
    Nearest,
}

impl Default for Rounding {
    /// The default of ONNX's operators.
    fn default() -> Self {
        Self {
            saturate: true,
            powers: Powers::Up,
        }
    }
}

/// The meaning of the codes at the end of the range.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// The largest exponent holds infinity and NaN.
    Ieee,
    /// The last code is NaN.
    LastIsNan,
    /// The code of minus zero means NaN.
    MinusZeroIsNan,
    /// Every code is a number.
    None,
}

struct Format {
    exponent: i32,
    mantissa: i32,
    bias: i32,
    special: Special,
}

/// The formats with a mantissa.
fn format(dtype: DType) -> Option<Format> {
    let (exponent, mantissa, bias, special) = match dtype {
        DType::F8E4M3 => (4, 3, 7, Special::LastIsNan),
        DType::F8E4M3Uz => (4, 3, 8, Special::MinusZeroIsNan),
        DType::F8E5M2 => (5, 2, 15, Special::Ieee),
        DType::F8E5M2Uz => (5, 2, 16, Special::MinusZeroIsNan),
        DType::F4E2M1 => (2, 1, 1, Special::None),
        _ => return None,
    };
    Some(Format {
        exponent,
        mantissa,
        bias,
        special,
    })
}

/// Conversion between the codes and values of one format.
pub struct Codec {
    values: Vec<f32>,
    /// Code of the sign bit; 0 for `F8E8M0`.
    sign: u8,
    /// Code of the largest number.
    largest: u8,
    special: Special,
}

impl Codec {
    /// The codec of a format; `None` for wider types.
    pub fn new(dtype: DType) -> Option<Self> {
        if dtype == DType::F8E8M0 {
            let value = |code: u8| match code {
                255 => f32::NAN,
                code => power(i32::from(code) - 127),
            };
            return Some(Self {
                values: (0..=255).map(value).collect(),
                sign: 0,
                largest: 254,
                special: Special::LastIsNan,
            });
        }
        let f = format(dtype)?;
        let sign = 1u8 << (f.exponent + f.mantissa);
        let last = sign - 1;
        // Infinity and the NaNs above it take a whole exponent.
        let largest = match f.special {
            Special::Ieee => last - (1 << f.mantissa),
            Special::LastIsNan => last - 1,
            Special::MinusZeroIsNan | Special::None => last,
        };
        let value = |code: u8| {
            let magnitude = code & last;
            if magnitude > largest {
                let infinite = f.special == Special::Ieee && magnitude == largest + 1;
                return if infinite { f32::INFINITY } else { f32::NAN };
            }
            let (exponent, mantissa) = (magnitude >> f.mantissa, magnitude & ((1 << f.mantissa) - 1));
            let unit = power(-f.mantissa);
            let (whole, exponent) = match exponent {
                0 => (0.0, 1),
                e => (1.0, i32::from(e)),
            };
            (whole + f32::from(mantissa) * unit) * power(exponent - f.bias)
        };
        let signed = |code: u8| {
            if code & sign == 0 {
                value(code)
            } else if code == sign && f.special == Special::MinusZeroIsNan {
                f32::NAN
            } else {
                -value(code)
            }
        };
        Some(Self {
            values: (0..=(sign | last)).map(signed).collect(),
            sign,
            largest,
            special: f.special,
        })
    }

    /// The exact value of a code. Bits that the format does not have are ignored.
    pub fn decode(&self, code: u8) -> f32 {
        let mask = self.values.len() - 1;
        self.values
            .get(usize::from(code) & mask)
            .copied()
            .unwrap_or(f32::NAN)
    }

    /// The code of a number, rounded as `rounding` says.
    pub fn encode(&self, x: f64, rounding: Rounding) -> u8 {
        if self.sign == 0 {
            return self.encode_power(x, rounding);
        }
        let sign = if x.is_sign_negative() { self.sign } else { 0 };
        let nan = match self.special {
            Special::MinusZeroIsNan => self.sign,
            Special::Ieee | Special::LastIsNan => sign | (self.sign - 1),
            Special::None => 0,
        };
        if x.is_nan() {
            return nan;
        }
        let code = self.nearest(x.abs());
        match code {
            0 if self.special == Special::MinusZeroIsNan => 0,
            code if code <= self.largest => sign | code,
            _ if rounding.saturate || self.special == Special::None => sign | self.largest,
            _ if self.special == Special::Ieee => sign | (self.largest + 1),
            _ => nan,
        }
    }

    /// The code of the value nearest to a non-negative `x`; the largest code plus one if `x` lies
    /// beyond it.
    fn nearest(&self, x: f64) -> u8 {
        let value = |code: u8| f64::from(self.decode(code));
        let low = self.floor(x);
        let high = if low < self.largest {
            value(low + 1)
        } else {
            2.0 * value(low) - value(low - 1)
        };
        let (below, above) = (x - value(low), high - x);
        if below < above || below == above && low.is_multiple_of(2) {
            low
        } else {
            low + 1
        }
    }

    /// The code of the largest value that is at most `x`. `x` must be at least the value of code 0.
    fn floor(&self, x: f64) -> u8 {
        let (mut low, mut high) = (0, self.largest);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if f64::from(self.decode(middle)) <= x {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Encodes a power of two. The format has no negative numbers; they become NaN.
    fn encode_power(&self, x: f64, rounding: Rounding) -> u8 {
        const NAN: u8 = 255;
        let (least, most) = (f64::from(self.decode(0)), f64::from(self.decode(self.largest)));
        if x.is_nan() || x < 0.0 {
            NAN
        } else if x < least {
            if rounding.saturate { 0 } else { NAN }
        } else if x > most {
            if rounding.saturate { self.largest } else { NAN }
        } else {
            let low = self.floor(x);
            let value = f64::from(self.decode(low));
            let up = match rounding.powers {
                Powers::Up => x > value,
                Powers::Down => false,
                Powers::Nearest => x >= 1.5 * value,
            };
            low + u8::from(up)
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "powers of two within the range of f32"
)]
fn power(exponent: i32) -> f32 {
    2f64.powi(exponent) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: [DType; 5] = [
        DType::F8E4M3,
        DType::F8E4M3Uz,
        DType::F8E5M2,
        DType::F8E5M2Uz,
        DType::F4E2M1,
    ];
    const FREE: Rounding = Rounding {
        saturate: false,
        powers: Powers::Nearest,
    };

    fn codec(dtype: DType) -> Codec {
        Codec::new(dtype).unwrap()
    }

    #[test]
    fn every_code_is_the_code_of_its_value() {
        for dtype in SIGNED.into_iter().chain([DType::F8E8M0]) {
            let c = codec(dtype);
            for code in 0..=u8::try_from(c.values.len() - 1).unwrap() {
                let v = c.decode(code);
                for rounding in [Rounding::default(), FREE] {
                    let again = c.encode(f64::from(v), rounding);
                    if v.is_nan() {
                        assert!(c.decode(again).is_nan(), "{dtype} {code:#x}");
                    } else if v.is_finite() || !rounding.saturate {
                        assert_eq!(again, code, "{dtype} {code:#x} is {v}");
                    }
                }
            }
        }
    }

    #[test]
    fn between_two_codes_the_nearer_and_of_halves_the_even() {
        for dtype in SIGNED {
            let c = codec(dtype);
            for code in 0..c.largest {
                let (a, b) = (f64::from(c.decode(code)), f64::from(c.decode(code + 1)));
                let middle = (a + b) / 2.0;
                let near = |x| c.encode(x, Rounding::default());
                let even = if code % 2 == 0 { code } else { code + 1 };
                assert_eq!(
                    [
                        near(middle),
                        near(middle * (1.0 - 1e-9)),
                        near(middle * (1.0 + 1e-9))
                    ],
                    [even, code, code + 1]
                );
                let minus = near(-middle);
                assert!(
                    minus == even | c.sign || even == 0 && minus == 0,
                    "{dtype} {middle}"
                );
            }
        }
    }

    /// Least number above 0, largest, and what is beyond, as the formats' papers and ONNX have it.
    #[test]
    fn ends_of_the_ranges() {
        let ends = |dtype| {
            let c = codec(dtype);
            (c.decode(1), c.decode(c.largest))
        };
        assert_eq!(ends(DType::F8E4M3), (2f32.powi(-9), 448.0));
        assert_eq!(ends(DType::F8E4M3Uz), (2f32.powi(-10), 240.0));
        assert_eq!(ends(DType::F8E5M2), (2f32.powi(-16), 57344.0));
        assert_eq!(ends(DType::F8E5M2Uz), (2f32.powi(-17), 57344.0));
        assert_eq!(ends(DType::F4E2M1), (0.5, 6.0));
        assert_eq!(ends(DType::F8E8M0).1, 2f32.powi(127));
        for dtype in SIGNED {
            let c = codec(dtype);
            let top = c.decode(c.largest);
            let (saturated, free) = (
                c.decode(c.encode(-1e9, Rounding::default())),
                c.decode(c.encode(-1e9, FREE)),
            );
            assert_eq!(saturated, -top, "{dtype}");
            assert_eq!(c.decode(c.encode(f64::INFINITY, Rounding::default())), top);
            match dtype {
                DType::F4E2M1 => assert_eq!(free, -6.0),
                DType::F8E5M2 => assert_eq!(free, f32::NEG_INFINITY),
                _ => assert!(free.is_nan(), "{dtype}"),
            }
            let zero = c.decode(c.encode(-0.0, FREE));
            let keeps_sign = !matches!(dtype, DType::F8E4M3Uz | DType::F8E5M2Uz);
            assert_eq!((zero, zero.is_sign_negative()), (0.0, keeps_sign));
        }
    }

    #[test]
    fn powers_of_two() {
        let c = codec(DType::F8E8M0);
        let to = |x, saturate, powers| c.decode(c.encode(x, Rounding { saturate, powers }));
        for (x, up, down, nearest) in [
            (1.1, 2.0, 1.0, 1.0),
            (1.5, 2.0, 1.0, 2.0),
            (3.5, 4.0, 2.0, 4.0),
            (4.0, 4.0, 4.0, 4.0),
        ] {
            let all = [Powers::Up, Powers::Down, Powers::Nearest];
            assert_eq!(all.map(|p| to(x, true, p)), [up, down, nearest]);
        }
        assert_eq!(to(1e300, true, Powers::Up), 2f32.powi(127));
        assert_eq!(to(0.0, true, Powers::Up), 2f32.powi(-127));
        assert!(to(0.0, false, Powers::Nearest).is_nan() && to(-1.0, true, Powers::Up).is_nan());
    }
}
