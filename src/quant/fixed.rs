//! Fixed-point arithmetic of integer-only networks (*Integer-Arithmetic-Only Inference*, Jacob et
//! al., "the paper" here): quantized multipliers, with rounding that matches gemmlowp and
//! TensorFlow Lite's reference kernels bit for bit.

/// A real factor `mantissa * 2^(shift - 31)` (equations 5 and 6 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiplier {
    /// From 2^30 to 2^31 - 1; 0 for a factor of 0; smaller after a [division](Self::divided).
    mantissa: i32,
    /// From -31 to 30; positive shifts go left.
    shift: i32,
}

impl Multiplier {
    /// The nearest multiplier; factors below 2^-32 become 0. `None` for a negative factor, one of
    /// about 2^30 or more, and NaN.
    pub fn new(real: f64) -> Option<Self> {
        const ZERO: Multiplier = Multiplier {
            mantissa: 0,
            shift: 0,
        };
        if !(0.0..=f64::from(1u32 << 30)).contains(&real) {
            return None;
        }
        if real < f64::from(2f32.powi(-33)) {
            return Some(ZERO);
        }
        // `real` is a normal number, so its exponent field is its exponent.
        let mut shift = exponent(real) + 1;
        let fraction = real * 2f64.powi(31 - shift);
        let mut mantissa = fraction.round();
        if mantissa >= 2f64.powi(31) {
            (mantissa, shift) = (mantissa / 2.0, shift + 1);
        }
        match shift {
            ..=-32 => Some(ZERO),
            -31..=30 => Some(Self {
                #[expect(clippy::cast_possible_truncation, reason = "from 2^30 to 2^31 - 1")]
                mantissa: mantissa as i32,
                shift,
            }),
            _ => None,
        }
    }

    /// This factor divided by `count`, as in TensorFlow Lite's reference kernel for means: the
    /// mantissa is shifted left, then divided with truncation, and may be below 2^30.
    #[must_use]
    pub fn divided(self, count: u32) -> Self {
        let count = count.max(1);
        let room = (31 + self.shift).max(0).unsigned_abs();
        let shift = count.ilog2().min(32).min(room);
        #[expect(clippy::cast_possible_truncation, reason = "2^shift is at most the divisor")]
        let mantissa = ((i64::from(self.mantissa) << shift) / i64::from(count)) as i32;
        Self {
            mantissa,
            shift: self.shift - shift.cast_signed(),
        }
    }

    /// The multiplier with this mantissa and shift; `None` if they are out of range.
    pub fn of_parts(mantissa: i32, shift: i32) -> Option<Self> {
        let valid = mantissa >= 0 && (-31..=30).contains(&shift);
        valid.then_some(Self { mantissa, shift })
    }

    /// The mantissa that kernels multiply by.
    pub fn mantissa(self) -> i32 {
        self.mantissa
    }

    /// The shift of kernels: if positive, to the left before the multiplication; if negative, to
    /// the right after it.
    pub fn shift(self) -> i32 {
        self.shift
    }

    /// The factor as a real number.
    pub fn real(self) -> f64 {
        f64::from(self.mantissa) * 2f64.powi(self.shift - 31)
    }

    /// `x` times the factor, rounded twice: the multiplication rounds to nearest, ties upward; the
    /// right shift rounds to nearest, ties away from zero. A left shift saturates.
    pub fn apply(self, x: i32) -> i32 {
        let left = shifted_left(x, self.shift.max(0).unsigned_abs());
        let product = doubling_high_product(left, self.mantissa);
        divided_by_power_of_two(product, self.shift.min(0).unsigned_abs())
    }
}

/// The exponent of a normal number.
fn exponent(x: f64) -> i32 {
    let field = (x.to_bits() >> 52 & 0x7ff) as u32;
    field.cast_signed() - 1023
}

/// `x * 2^n`, saturated.
fn shifted_left(x: i32, n: u32) -> i32 {
    let wide = i64::from(x) << n.min(31);
    #[expect(clippy::cast_possible_truncation, reason = "clamped to the type")]
    let saturated = wide.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    saturated
}

/// The high half of `2 a b`, rounded to nearest, ties upward; saturated if both are `i32::MIN`.
/// gemmlowp's `SaturatingRoundingDoublingHighMul`, Arm's SQRDMULH.
pub fn doubling_high_product(a: i32, b: i32) -> i32 {
    let product = i64::from(a) * i64::from(b);
    let nudge = if product >= 0 { 1 << 30 } else { 1 - (1 << 30) };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "out of range only if both are i32::MIN"
    )]
    let saturated = ((product + nudge) / (1 << 31)).min(i32::MAX.into()) as i32;
    saturated
}

/// `x / 2^n` for `n` up to 31, rounded to nearest, ties away from zero. gemmlowp's
/// `RoundingDivideByPOT`.
pub fn divided_by_power_of_two(x: i32, n: u32) -> i32 {
    let n = n.min(31);
    let mask = (1i64 << n) - 1;
    let rest = i64::from(x) & mask;
    let threshold = (mask >> 1) + i64::from(x < 0);
    (x >> n) + i32::from(rest > threshold)
}

/// How sums of products are requantized to 8 bits. Both give the same bits on every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Fixed point, rounded twice, as in the paper, gemmlowp and TensorFlow Lite's reference
    /// kernels.
    Fixed,
    /// A multiplication in `f32`, rounded to nearest, ties to even, as in ONNX.
    Float,
}

/// A real factor in one of the two arithmetics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    Fixed(Multiplier),
    Float(f32),
}

impl Factor {
    /// `x * w / y` for the scales x of the input, w of the weights and y of the result. `None` if
    /// it is too large, negative or NaN.
    pub fn of_scales(arithmetic: Arithmetic, x: f32, w: f32, y: f32) -> Option<Self> {
        match arithmetic {
            Arithmetic::Fixed => {
                let real = f64::from(x) * f64::from(w) / f64::from(y);
                Multiplier::new(real).map(Self::Fixed)
            }
            Arithmetic::Float => {
                let factor = x * w / y;
                (0.0..f32::INFINITY)
                    .contains(&factor)
                    .then_some(Self::Float(factor))
            }
        }
    }

    /// `x` times the factor, rounded.
    pub fn apply(self, x: i32) -> i32 {
        match self {
            Self::Fixed(multiplier) => multiplier.apply(x),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "rounded to nearest and saturated"
            )]
            Self::Float(factor) => (x as f32 * factor).round_ties_even() as i32,
        }
    }
}

/// What follows the rounding of a result: its zero point is added, and the sum is clamped. The
/// bounds are those of the type, or narrower for a fused activation (section 2.4 of the paper).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The integer that stands for 0.
    pub zero: i32,
    /// Smallest integer.
    pub low: i32,
    /// Largest integer.
    pub high: i32,
}

impl Output {
    /// An output without a fused activation.
    pub fn new(zero: i32) -> Self {
        Self {
            zero,
            low: i8::MIN.into(),
            high: i8::MAX.into(),
        }
    }

    /// The 8-bit result of a rounded value.
    pub fn of(self, rounded: i32) -> i8 {
        let moved = rounded.saturating_add(self.zero).clamp(self.low, self.high);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the bounds are those of the type or narrower"
        )]
        let stored = moved as i8;
        stored
    }

    /// Quantizes a float as ONNX `QuantizeLinear` does: divides by the scale and rounds to nearest,
    /// ties to even. NaN becomes the zero point, within the bounds.
    pub fn quantized(self, real: f32, scale: f32) -> i8 {
        #[expect(clippy::cast_possible_truncation, reason = "saturates; NaN becomes 0")]
        let rounded = (real / scale).round_ties_even() as i32;
        self.of(rounded)
    }
}

/// A bias as an integer at `scale`, the scale of the weights times that of the input. It is rounded
/// to nearest, ties away from zero (section 2.4 of the paper), and may exceed 32 bits.
pub fn quantized_bias(bias: f32, scale: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    let quantized = (f64::from(bias) / scale).round() as i64;
    quantized
}

/// Scale and zero point of quantized values: `real = scale * (quantized - zero)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Above 0.
    pub scale: f32,
    /// The integer that stands for 0.
    pub zero: i32,
}

impl Affine {
    /// Maps the range from `low` to `high` to the integers from `least` to `most`, nudged so that 0
    /// is represented exactly (section 3.1 of the paper). A range that does not contain 0 is
    /// extended to 0. `None` if the range is reversed or not finite, if `least` is not below
    /// `most`, or if the scale is not a normal `f32`.
    pub fn nudged(low: f32, high: f32, least: i32, most: i32) -> Option<Self> {
        if !(low.is_finite() && high.is_finite() && low <= high && least < most) {
            return None;
        }
        let (low, high) = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
        if low == high {
            return Some(Self {
                scale: 1.0,
                zero: least,
            });
        }
        let (first, last) = (f64::from(least), f64::from(most));
        #[expect(clippy::cast_possible_truncation, reason = "checked to be a normal number")]
        let scale = ((high - low) / (last - first)) as f32;
        let zero = (first - low / f64::from(scale)).round().clamp(first, last);
        #[expect(clippy::cast_possible_truncation, reason = "between two integers")]
        scale.is_normal().then_some(Self {
            scale,
            zero: zero as i32,
        })
    }

    /// The real number that an integer stands for. For integers of up to 16 bits, this equals one
    /// multiplication in `f32`, as in ONNX `DequantizeLinear`.
    #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
    pub fn real(self, quantized: i32) -> f32 {
        (f64::from(self.scale) * (f64::from(quantized) - f64::from(self.zero))) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// SplitMix64, as in `tests/data/fixed/make.cc`.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        }

        fn below(&mut self, n: u64) -> i32 {
            (self.next() % n) as i32
        }
    }

    /// An accumulator and a multiplier of the vectors, as in `tests/data/fixed/make.cc`.
    fn input(i: usize, random: &mut Random) -> (i32, Multiplier) {
        const ENDS: [i32; 8] = [i32::MIN, i32::MIN + 1, -2, -1, 0, 1, i32::MAX - 1, i32::MAX];
        let r = random.next();
        let mut x = r as i32;
        let mut mantissa = (1 << 30) + (r >> 34) as i32;
        let mut shift = random.below(62) - 31;
        match i % 8 {
            0 => {}
            1 => x >>= 11,
            2 => (x, mantissa) = (x | 1, 1 << 30),
            3 => {
                shift = -1 - random.below(30);
                mantissa = 1 << 30;
                x = (x << 1 | 1) << -shift;
            }
            4 => {
                x = ENDS[(r % 8) as usize];
                mantissa = if random.below(2) == 1 { 1 << 30 } else { i32::MAX };
            }
            5 => mantissa = if i % 16 < 8 { 0 } else { mantissa },
            6 => {
                shift = random.below(31);
                let end = if x < 0 { i32::MIN } else { i32::MAX } >> shift;
                x = end.wrapping_add(random.below(5)).wrapping_sub(2);
            }
            _ => shift = -random.below(9),
        }
        (x, Multiplier { mantissa, shift })
    }

    #[test]
    fn a_million_requantizations_equal_gemmlowps() {
        const START: u64 = 0xcbf2_9ce4_8422_2325;
        let wanted = include_str!("../../tests/data/fixed/requantized.txt");
        let wanted: Vec<u64> = wanted
            .lines()
            .map(|line| u64::from_str_radix(line, 16).unwrap())
            .collect();
        assert_eq!(wanted.len(), 1000);
        let mut random = Random(0);
        for (block, wanted) in wanted.into_iter().enumerate() {
            let mut hash = START;
            for i in 0..1000 {
                let (x, multiplier) = input(block * 1000 + i, &mut random);
                for byte in multiplier.apply(x).to_le_bytes() {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
            assert_eq!(hash, wanted, "results {}000 to {}999", block, block);
        }
    }

    #[test]
    fn ties_round_as_in_the_paper() {
        // Appendix B: -12 / 2^3 is -2; rounding shifts of processors give -1.
        assert_eq!(divided_by_power_of_two(-12, 3), -2);
        assert_eq!([4, 12, -4].map(|x| divided_by_power_of_two(x, 3)), [1, 2, -1]);
        assert_eq!(
            [1, -1, 3, -3].map(|x| doubling_high_product(x, 1 << 30)),
            [1, 0, 2, -1]
        );
        assert_eq!(doubling_high_product(i32::MIN, i32::MIN), i32::MAX);
    }

    #[test]
    fn multipliers_are_the_nearest_and_within_bounds() {
        let of = |real: f64| Multiplier::new(real).map(|m| (m.mantissa, m.shift));
        assert_eq!(of(0.5), Some((1 << 30, 0)));
        assert_eq!(of(1.0), Some((1 << 30, 1)));
        assert_eq!(of(0.0), Some((0, 0)));
        // Rounds up to a power of two.
        assert_eq!(of(1.0 - 1e-12), Some((1 << 30, 1)));
        assert_eq!(of(2f64.powi(-32)), Some((1 << 30, -31)));
        assert_eq!(of(2f64.powi(-33)), Some((0, 0)));
        assert_eq!(of(2f64.powi(30) - 1.0), Some((i32::MAX - 1, 30)));
        for real in [-1.0, 2f64.powi(30), 1e300, f64::INFINITY, f64::NAN] {
            assert_eq!(of(real), None, "{real}");
        }
    }

    #[test]
    fn ranges_contain_zero_exactly() {
        let of = |low, high| Affine::nudged(low, high, -128, 127).map(|a| (a.scale, a.zero));
        assert_eq!(of(-1.28, 1.27), Some((0.01, 0)));
        assert_eq!(of(0.0, 255.0), Some((1.0, -128)));
        assert_eq!(of(1.0, 2.55), of(0.0, 2.55));
        assert_eq!(of(-3.0, -1.0), of(-3.0, 0.0));
        assert_eq!(of(0.0, 0.0), Some((1.0, -128)));
        for (low, high) in [(1.0, 0.0), (f32::NAN, 1.0), (0.0, f32::INFINITY), (0.0, 1e-44)] {
            assert_eq!(of(low, high), None, "{low} to {high}");
        }
        // 0 lies between two integers of this range, so the range moves by less than half a step.
        let moved = Affine::nudged(-0.3, 1.0, 0, 255).unwrap();
        assert_eq!(moved.real(moved.zero), 0.0);
        assert!((moved.real(0) + 0.3).abs() < moved.scale / 2.0);
    }

    #[test]
    fn biases_round_away_from_zero() {
        let biases = [2.5, -2.5, 0.0, 3e9, -3e9, f32::INFINITY];
        let wanted = [3, -3, 0, 3_000_000_000, -3_000_000_000, i64::MAX];
        assert_eq!(biases.map(|b| quantized_bias(b, 1.0)), wanted);
    }

    proptest! {
        #[test]
        fn a_requantization_is_within_one_of_the_exact_one(
            x in any::<i32>(), mantissa in 1 << 30..=i32::MAX, shift in -31..=0
        ) {
            let multiplier = Multiplier { mantissa, shift };
            let exact = f64::from(x) * multiplier.real();
            prop_assert!((f64::from(multiplier.apply(x)) - exact).abs() <= 1.0);
        }
    }
}
