//! Tables of unary and binary functions.
//!
//! A kernel text may call helpers of [`HELPERS`]; a kernel includes those that its expression
//! calls.

use super::real::{Integer, Real};
use crate::num::{max_nan, min_nan};

/// Declares unary functions: name, reference, and expressions of `x` in OpenCL C and WGSL.
macro_rules! unary {
    ($($name:ident $reference:expr, $cl:literal, $wgsl:literal;)*) => {
        /// A function of one float.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Unary { $(#[doc = stringify!($name)] $name),* }
        pub const UNARY: &[Unary] = &[$(Unary::$name),*];
        impl Unary {
            pub fn apply<F: Real>(self, x: F) -> F {
                match self { $(Self::$name => F::apply($reference, $reference, x)),* }
            }
            /// OpenCL C and WGSL texts with `x` for the argument.
            pub fn text(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => ($cl, $wgsl)),* }
            }
        }
    };
}

// The bounds keep every intermediate finite, since WGSL compilers may assume that infinities do not
// occur.
unary! {
    Neg |x| -x, "(-x)", "(-x)";
    Abs |x| x.abs(), "fabs(x)", "abs(x)";
    Exp |x| x.exp(), "exp(fmin(x, 88.0f))", "exp(min(x, 88.0))";
    Log |x| x.ln(), "log(x)", "log(x)";
    Sqrt |x| x.sqrt(), "sqrt(x)", "sqrt(x)";
    Reciprocal |x| x.recip(), "(1.0f / x)", "(1.0 / x)";
    Sigmoid |x| 1.0 / (1.0 + (-x).exp()), "(1.0f / (1.0f + exp(fmin(-x, 80.0f))))", "(1.0 / (1.0 + exp(min(-x, 80.0))))";
    Tanh |x| x.tanh(), "tanh(clamp(x, -20.0f, 20.0f))", "tanh(clamp(x, -20.0, 20.0))";
    Relu |x| max_nan(x, 0.0), "fmax(x, 0.0f)", "max(x, 0.0)";
    Sin |x| x.sin(), "sin(x)", "sin(x)";
    Cos |x| x.cos(), "cos(x)", "cos(x)";
    Floor |x| x.floor(), "floor(x)", "floor(x)";
    Ceil |x| x.ceil(), "ceil(x)", "ceil(x)";
    Round |x| x.round_ties_even(), "rint(x)", "round(x)";
    Sign |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, "sign(x)", "sign(x)";
    Erf Real::erf, "erf_of(x)", "erf_of(x)";
    Softplus |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), "softplus_of(x)", "softplus_of(x)";
    Softsign |x| x / (1.0 + x.abs()), "softsign_of(x)", "softsign_of(x)";
    HardSwish |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0), "hard_swish_of(x)", "hard_swish_of(x)";
    Tan |x| x.tan(), "tan(x)", "tan(x)";
    Asin |x| x.asin(), "asin(clamp(x, -1.0f, 1.0f))", "asin_of(x)";
    Acos |x| x.acos(), "acos(clamp(x, -1.0f, 1.0f))", "acos_of(x)";
    Atan |x| x.atan(), "atan(x)", "atan(x)";
    Sinh |x| x.sinh(), "sinh(clamp(x, -88.0f, 88.0f))", "sinh(clamp(x, -88.0, 88.0))";
    Cosh |x| x.cosh(), "cosh(clamp(x, -88.0f, 88.0f))", "cosh(clamp(x, -88.0, 88.0))";
    Asinh |x| x.asinh(), "asinh(x)", "asinh_of(x)";
    Acosh |x| x.acosh(), "acosh(fmax(x, 1.0f))", "acosh(max(x, 1.0))";
    Atanh |x| x.atanh(), "atanh(clamp(x, -0.99999994f, 0.99999994f))", "atanh(clamp(x, -0.99999994, 0.99999994))";
}

/// A function of two arguments of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the ONNX operators")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    And,
    Or,
    Xor,
    /// The remainder with the divisor's sign.
    Mod,
    /// The remainder with the dividend's sign: `Mod` where `fmod` is 1.
    FMod,
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    /// `BitShift` to the left.
    ShiftLeft,
    /// `BitShift` to the right; the sign fills the high bits.
    ShiftRight,
}

pub const BINARY: &[Binary] = {
    use Binary::*;
    &[
        Add,
        Sub,
        Mul,
        Div,
        Pow,
        Min,
        Max,
        Less,
        LessOrEqual,
        Greater,
        GreaterOrEqual,
        Equal,
        And,
        Or,
        Xor,
        Mod,
        FMod,
        BitwiseAnd,
        BitwiseOr,
        BitwiseXor,
        ShiftLeft,
        ShiftRight,
    ]
};

impl Binary {
    pub fn is_comparison(self) -> bool {
        use Binary::*;
        matches!(self, Less | LessOrEqual | Greater | GreaterOrEqual | Equal)
    }

    pub fn is_logical(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }

    /// True for functions that are defined only for integers.
    pub fn is_bitwise(self) -> bool {
        matches!(
            self,
            Self::BitwiseAnd | Self::BitwiseOr | Self::BitwiseXor | Self::ShiftLeft | Self::ShiftRight
        )
    }

    pub fn floats<F: Real>(self, a: F, b: F) -> F {
        match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::Pow => a.powf(b),
            Self::Min => min_nan(a, b),
            Self::Max => max_nan(a, b),
            Self::FMod => a % b,
            Self::Mod => {
                let (zero, r) = (F::of(0.0), a % b);
                if r == zero {
                    zero.copysign(b)
                } else if (r < zero) != (b < zero) {
                    r + b
                } else {
                    r
                }
            }
            _ => F::of(f64::NAN),
        }
    }

    pub fn ints<I: Integer>(self, a: I, b: I) -> I {
        let zero = I::of(false);
        let truth = |v: &I| *v != zero;
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div if b == zero => zero,
            Self::Div => a.wrapping_div(b),
            Self::Pow => power(a, b),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
            Self::And => I::of(truth(&a) && truth(&b)),
            Self::Or => I::of(truth(&a) || truth(&b)),
            Self::Xor => I::of(truth(&a) != truth(&b)),
            Self::FMod => a.checked_rem(b).unwrap_or(zero),
            Self::Mod => match a.checked_rem(b) {
                Some(r) if r != zero && (r < zero) != (b < zero) => r.wrapping_add(b),
                r => r.unwrap_or(zero),
            },
            Self::BitwiseAnd => a & b,
            Self::BitwiseOr => a | b,
            Self::BitwiseXor => a ^ b,
            // The result type keeps the low bits.
            Self::ShiftLeft => b.as_shift().and_then(|b| a.checked_shl(b)).unwrap_or(zero),
            Self::ShiftRight => {
                let signs = if a < zero {
                    zero.wrapping_sub(I::of(true))
                } else {
                    zero
                };
                b.as_shift().and_then(|b| a.checked_shr(b)).unwrap_or(signs)
            }
            _ => zero,
        }
    }

    pub fn compare<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            _ => a == b,
        }
    }
}

/// A predicate of a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    Nan,
    /// Infinite, with the selected signs.
    Infinite {
        negative: bool,
        positive: bool,
    },
}

impl Test {
    pub fn holds<F: Real>(self, x: F) -> bool {
        match self {
            Self::Nan => x.is_nan(),
            Self::Infinite { negative, positive } => {
                x.is_infinite() && if x < F::of(0.0) { negative } else { positive }
            }
        }
    }
}

/// An integer power modulo 2^64; the type keeps the low bits. A negative exponent gives a fraction,
/// which is truncated.
fn power<I: Integer>(base: I, exponent: I) -> I {
    let (zero, one) = (I::of(false), I::of(true));
    let minus_one = zero.wrapping_sub(one);
    let odd = exponent & one != zero;
    if exponent < zero {
        return match base {
            b if b == one => one,
            b if b == minus_one => {
                if odd {
                    minus_one
                } else {
                    one
                }
            }
            _ => zero,
        };
    }
    let (mut out, mut square, mut rest) = (one, base, exponent);
    while rest != zero {
        if rest & one != zero {
            out = out.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest = rest.checked_shr(1).unwrap_or(zero);
    }
    out
}

/// Functions that kernel texts call: name, OpenCL C, WGSL. `FLOAT` is `float` or a vector of
/// floats, `INT` and `UINT` are integers of 32 or 64 bits.
pub const HELPERS: &[(&str, &str, &str)] = &[
    // WGSL's pow is undefined for a negative base; an odd integer exponent keeps the sign.
    (
        "signed_pow",
        "inline FLOAT signed_pow(FLOAT x, FLOAT y) { return pow(x, y); }\n",
        "fn signed_pow(x: f32, y: f32) -> f32 { let r = pow(abs(x), y); return select(r, -r, x < 0.0 && fract(y * 0.5) != 0.0); }\n",
    ),
    (
        "erf_of",
        "inline FLOAT erf_of(FLOAT x) {
  FLOAT t = fmin(fabs(x), 10.0f), s = t * t;
  FLOAT r = (-1.7285347e-5f * t + 3.831972e-4f) * s + (-3.8839647e-3f * t + 2.4254622e-2f);
  r = ((r * t - 1.0677788e-1f) * t - 6.3484669e-1f) * t - 1.2871751e-1f;
  FLOAT far = copysign(1.0f - exp(r * t - t), x);
  FLOAT n = (((-5.967617e-4f * s + 4.991194e-3f) * s - 2.6768135e-2f) * s + 1.1281993e-1f) * s - 3.7612534e-1f;
  return t > 0.9277344f ? far : (n * s + 1.2837917e-1f) * x + x;
}\n",
        "fn erf_of(x: f32) -> f32 {
  let t = min(abs(x), 10.0);
  let s = t * t;
  var r = (-1.7285347e-5 * t + 3.831972e-4) * s + (-3.8839647e-3 * t + 2.4254622e-2);
  r = ((r * t - 1.0677788e-1) * t - 6.3484669e-1) * t - 1.2871751e-1;
  let far = 1.0 - exp(r * t - t);
  let n = (((-5.967617e-4 * s + 4.991194e-3) * s - 2.6768135e-2) * s + 1.1281993e-1) * s - 3.7612534e-1;
  return select((n * s + 1.2837917e-1) * x + x, select(far, -far, x < 0.0), t > 0.9277344);
}\n",
    ),
    (
        "softplus_of",
        "inline FLOAT softplus_of(FLOAT x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }\n",
        // Near 0 the logarithm is inaccurate because 1 + e rounds; the series is not.
        "fn softplus_of(x: f32) -> f32 { let e = exp(-abs(x)); return max(x, 0.0) + select(log(1.0 + e), e - 0.5 * e * e, e < 1e-3); }\n",
    ),
    (
        "softsign_of",
        "inline FLOAT softsign_of(FLOAT x) { return x / (1.0f + fabs(x)); }\n",
        "fn softsign_of(x: f32) -> f32 { return x / (1.0 + abs(x)); }\n",
    ),
    (
        "hard_swish_of",
        "inline FLOAT hard_swish_of(FLOAT x) { return x * clamp(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f); }\n",
        "fn hard_swish_of(x: f32) -> f32 { return x * clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0); }\n",
    ),
    // WGSL allows errors of thousands of ULPs for asin and acos; atan2 is precise.
    (
        "asin_of",
        "",
        "fn asin_of(x: f32) -> f32 { let v = clamp(x, -1.0, 1.0); return atan2(v, sqrt((1.0 - v) * (1.0 + v))); }\n",
    ),
    (
        "acos_of",
        "",
        "fn acos_of(x: f32) -> f32 { let v = clamp(x, -1.0, 1.0); return atan2(sqrt((1.0 - v) * (1.0 + v)), v); }\n",
    ),
    (
        "asinh_of",
        "",
        "fn asinh_of(x: f32) -> f32 { return sign(x) * asinh(abs(x)); }\n",
    ),
    // Division by 0 gives 0, and so does the remainder; the smallest integer by -1 wraps around.
    (
        "int_div",
        "inline INT int_div(INT x, INT y) { return y == 0 ? 0 : y == -1 ? (INT)(0 - (UINT)x) : x / y; }\n",
        "fn int_div(x: INT, y: INT) -> INT { let q = x / select(y, INT(1), y == 0 || y == -1); return select(select(q, -x, y == -1), INT(0), y == 0); }\n",
    ),
    (
        "uint_div",
        "inline UINT uint_div(UINT x, UINT y) { return y == 0 ? 0 : x / y; }\n",
        "fn uint_div(x: UINT, y: UINT) -> UINT { return select(x / select(y, UINT(1), y == 0), UINT(0), y == 0); }\n",
    ),
    (
        "int_rem",
        "inline INT int_rem(INT x, INT y) { return y == 0 || y == -1 ? 0 : x % y; }\n",
        "fn int_rem(x: INT, y: INT) -> INT { return x % select(y, INT(1), y == 0 || y == -1); }\n",
    ),
    (
        "uint_rem",
        "inline UINT uint_rem(UINT x, UINT y) { return y == 0 ? 0 : x % y; }\n",
        "fn uint_rem(x: UINT, y: UINT) -> UINT { return x % select(y, UINT(1), y == 0); }\n",
    ),
    (
        "int_mod",
        "inline INT int_mod(INT x, INT y) { INT r = y == 0 || y == -1 ? 0 : x % y; return r != 0 && (r < 0) != (y < 0) ? r + y : r; }\n",
        "fn int_mod(x: INT, y: INT) -> INT { let r = x % select(y, INT(1), y == 0 || y == -1); return select(r, r + y, r != 0 && (r < 0) != (y < 0)); }\n",
    ),
    // A float as an integer, truncated: the low 32 bits of the nearest 64-bit integer. The parts of
    // a float above and below 2^32 are exact.
    (
        "int_of",
        "inline int int_of(float x) {
  uint low = convert_uint_sat(fabs(x - trunc(x * 2.3283064e-10f) * 4294967296.0f));
  return fabs(x) < 9.223372e18f ? (int)(x < 0.0f ? 0u - low : low) : x > 0.0f ? -1 : 0;
}\n",
        "fn int_of(x: f32) -> i32 {
  if ((bitcast<u32>(x) & 0x7FFFFFFFu) >= 0x5F000000u) { return select(0, -1, bitcast<u32>(x) - 0x5F000000u <= 0x20800000u); }
  let low = i32(u32(abs(x - trunc(x * 2.3283064e-10) * 4294967296.0)));
  return select(low, -low, x < 0.0);
}\n",
    ),
    // Likewise, but those that do not fit 32 bits become the nearest that do.
    (
        "int_near",
        "inline int int_near(float x) { return convert_int_sat(x); }\n",
        "fn int_near(x: f32) -> i32 {
  if ((bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u) { return 0; }
  return select(select(i32(x), 2147483647, x >= 2147483648.0), -2147483647 - 1, x <= -2147483648.0);
}\n",
    ),
    // The nearest 64-bit integer, signed and unsigned.
    (
        "long_of",
        "inline long long_of(float x) { return convert_long_sat(x); }\n",
        "fn long_of(x: f32) -> i64 {
  if ((bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u) { return 0li; }
  if (x >= 9223372036854775808.0) { return 9223372036854775807li; }
  if (x <= -9223372036854775808.0) { return i64(-9223372036854775807 - 1); }
  let high = trunc(x * 2.3283064e-10);
  let low = i64(u64(u32(abs(x - high * 4294967296.0))));
  return i64(i32(high)) * 4294967296li + select(low, -low, x < 0.0);
}\n",
    ),
    (
        "ulong_of",
        "inline long ulong_of(float x) { return (long)convert_ulong_sat(x); }\n",
        "fn ulong_of(x: f32) -> i64 {
  if (!(x > 0.0) || (bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u) { return 0li; }
  if (x >= 18446744073709551616.0) { return i64(-1); }
  let high = trunc(x * 2.3283064e-10);
  return i64(u64(u32(high)) * 4294967296lu + u64(u32(x - high * 4294967296.0)));
}\n",
    ),
    (
        "float_mod",
        "inline FLOAT float_mod(FLOAT x, FLOAT y) { return fmod(x, y); }\n",
        "fn float_mod(x: f32, y: f32) -> f32 { return x - y * trunc(x / y); }\n",
    ),
    // WGSL's division may round a quotient to the next integer, above or below.
    (
        "floored_mod",
        "inline FLOAT floored_mod(FLOAT x, FLOAT y) {
  FLOAT r = fmod(x, y);
  return r == 0.0f ? copysign(r, y) : ((r < 0.0f) != (y < 0.0f) ? r + y : r);
}\n",
        "fn floored_mod(x: f32, y: f32) -> f32 {
  var r = select(fma(-floor(x / y), y, x), x, abs(x) < abs(y));
  r = select(r, r - y, abs(r) >= abs(y));
  let zero = bitcast<f32>(bitcast<u32>(y) & 0x80000000u);
  return select(select(r, r + y, (r < 0.0) != (y < 0.0)), zero, r == 0.0);
}\n",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_stays_so() {
        assert!(Unary::Relu.apply(f32::NAN).is_nan() && Unary::Relu.apply(f64::NAN).is_nan());
        for f in [Binary::Min, Binary::Max] {
            assert!(f.floats(f32::NAN, 1.0).is_nan() && f.floats(1.0, f32::NAN).is_nan());
        }
        assert_eq!(
            (Binary::Min.floats(2.0f32, 1.0), Binary::Max.floats(2.0, 1.0)),
            (1.0, 2.0)
        );
    }

    #[test]
    fn powers_of_integers() {
        let pow = |a: i64, b| Binary::Pow.ints(a, b);
        assert_eq!([pow(1, -3), pow(-1, -3), pow(-1, -2), pow(5, -1)], [1, -1, 1, 0]);
        assert_eq!([pow(3, 4), pow(-2, 3), pow(7, 0), pow(0, 0)], [81, -8, 1, 1]);
        assert_eq!(
            [pow(-1, 1 << 40), pow(-1, (1 << 40) + 1), pow(2, 1 << 40)],
            [1, -1, 0]
        );
    }

    #[test]
    fn remainders() {
        let pairs = [(7i64, 3), (-7, 3), (7, -3), (-7, -3), (6, 3), (5, 0)];
        assert_eq!(pairs.map(|(a, b)| Binary::Mod.ints(a, b)), [1, 2, -2, -1, 0, 0]);
        assert_eq!(pairs.map(|(a, b)| Binary::FMod.ints(a, b)), [1, -1, 1, -1, 0, 0]);
    }

    #[test]
    fn float_remainders_have_the_sign_of_the_divisor() {
        use std::f64::consts::PI;
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for (a, b, wanted) in [
            (7.0, 3.0, 1.0),
            (-7.0, 3.0, 2.0),
            (7.0, -3.0, -2.0),
            (-7.0, -3.0, -1.0),
            (1e300, 3.0, 1e300 % 3.0),
            (0.0, -2.0, -0.0),
            (-0.0, 2.0, 0.0),
            (6.0, -3.0, -0.0),
            (-6.0, 3.0, 0.0),
            (0.0, -inf, -0.0),
            (PI, inf, PI),
            (-PI, inf, inf),
            (PI, -inf, -inf),
            (-PI, -inf, -PI),
            (inf, 2.0, nan),
            (-inf, inf, nan),
            (1.0, 0.0, nan),
            (0.0, -0.0, nan),
            (nan, 2.0, nan),
            (2.0, nan, nan),
        ] {
            let found = Binary::Mod.floats(a, b);
            let same = found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan();
            assert!(same, "{a} mod {b} = {wanted}, found {found}");
        }
        let narrow = Binary::Mod.floats(-4.3f32, 2.1);
        assert!((narrow - 2.0).abs() < 1e-6 && Binary::Mod.floats(4.2f32, 2.1) == 0.0);
    }

    #[test]
    fn shifts_of_signed_integers() {
        let shifts = [0i64, 1, 63, 64, i64::MAX, -1, i64::MIN];
        let of = |f: Binary, a| shifts.map(|b| f.ints(a, b));
        assert_eq!(of(Binary::ShiftRight, -7), [-7, -4, -1, -1, -1, -1, -1]);
        assert_eq!(of(Binary::ShiftRight, 7), [7, 3, 0, 0, 0, 0, 0]);
        assert_eq!(of(Binary::ShiftLeft, -3), [-3, -6, i64::MIN, 0, 0, 0, 0]);
        assert_eq!(Binary::ShiftRight.ints(u64::MAX, 64), 0);
    }
}
