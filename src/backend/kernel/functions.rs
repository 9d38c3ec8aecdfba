//! Tables of unary and binary functions.
//!
//! A kernel text may call helpers of [`HELPERS`]; a kernel includes those that its expression
//! calls. For NaN and infinities, the results are those of Rust. The functions of OpenCL C define
//! them; those of WGSL do not. The WGSL sources therefore keep numbers finite and test bits for NaN
//! and infinities, with functions that every WGSL kernel has: `is_nan`, `is_finite`, `infinity` and
//! `nan`.

pub use super::helpers::HELPERS;
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

unary! {
    Neg |x| -x, "(-x)", "(-x)";
    Abs |x| x.abs(), "fabs(x)", "abs(x)";
    Exp |x| x.exp(), "exp(x)", "exp_of(x)";
    Log |x| x.ln(), "log(x)", "log_of(x)";
    Sqrt |x| x.sqrt(), "sqrt(x)", "sqrt_of(x)";
    Reciprocal |x| x.recip(), "(1.0f / x)", "reciprocal_of(x)";
    Sigmoid |x| 1.0 / (1.0 + (-x).exp()), "(1.0f / (1.0f + exp(-x)))", "sigmoid_of(x)";
    Tanh |x| x.tanh(), "tanh(x)", "tanh_of(x)";
    Relu |x| max_nan(x, 0.0), "relu_of(x)", "relu_of(x)";
    Sin |x| x.sin(), "sin(x)", "sin_of(x)";
    Cos |x| x.cos(), "cos(x)", "cos_of(x)";
    Floor |x| x.floor(), "floor(x)", "floor_of(x)";
    Ceil |x| x.ceil(), "ceil(x)", "ceil_of(x)";
    Round |x| x.round_ties_even(), "rint(x)", "round_of(x)";
    Sign |x| if x == 0.0 || x.is_nan() { x } else { x.signum() }, "sign_of(x)", "sign_of(x)";
    Erf Real::erf, "erf_of(x)", "erf_of(x)";
    Softplus |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), "softplus_of(x)", "softplus_of(x)";
    Softsign |x| x / (1.0 + x.abs()), "softsign_of(x)", "softsign_of(x)";
    HardSwish |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0), "hard_swish_of(x)", "hard_swish_of(x)";
    Tan |x| x.tan(), "tan(x)", "tan_of(x)";
    Asin |x| x.asin(), "asin(x)", "asin_of(x)";
    Acos |x| x.acos(), "acos(x)", "acos_of(x)";
    Atan |x| x.atan(), "atan(x)", "arctan_of(x)";
    Sinh |x| x.sinh(), "sinh(x)", "sinh_of(x)";
    Cosh |x| x.cosh(), "cosh(x)", "cosh_of(x)";
    Asinh |x| x.asinh(), "asinh(x)", "asinh_of(x)";
    Acosh |x| x.acosh(), "acosh(x)", "acosh_of(x)";
    Atanh |x| x.atanh(), "atanh(x)", "atanh_of(x)";
}

/// A function of two arguments of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the ONNX operators")]
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
