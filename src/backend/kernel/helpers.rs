//! Helpers that the sources of elementwise functions call.

/// Name, OpenCL C, WGSL. In OpenCL C, `FLOAT` is `float` or a vector of floats, and `UINT` is the
/// unsigned type of the same length. `INTEGER` and `UNSIGNED` are integer types of 32 or 64 bits.
pub const HELPERS: &[(&str, &str, &str)] = &[
    // Infinities and NaN are returned unchanged.
    (
        "floor_of",
        "",
        "fn floor_of(x: f32) -> f32 { return select(x, floor(x), is_finite(x)); }\n",
    ),
    (
        "ceil_of",
        "",
        "fn ceil_of(x: f32) -> f32 { return select(x, ceil(x), is_finite(x)); }\n",
    ),
    (
        "round_of",
        "",
        "fn round_of(x: f32) -> f32 { return select(x, round(x), is_finite(x)); }\n",
    ),
    (
        "exp_of",
        "",
        "fn exp_of(x: f32) -> f32 {
  let r = select(exp(clamp(x, -150.0, 88.72)), infinity(), x > 88.722839);
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "log_of",
        "",
        "fn log_of(x: f32) -> f32 {
  var r = log(x);
  if (x <= 0.0) { r = select(nan(), -infinity(), x == 0.0); }
  return select(r, x, is_nan(x) || bitcast<u32>(x) == 0x7f800000u);
}\n",
    ),
    (
        "sqrt_of",
        "",
        "fn sqrt_of(x: f32) -> f32 {
  let r = select(sqrt(abs(x)), nan(), x < 0.0);
  return select(r, x, is_nan(x) || bitcast<u32>(x) == 0x7f800000u);
}\n",
    ),
    (
        "reciprocal_of",
        "",
        "fn reciprocal_of(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let m = abs(x);
  var r = 1.0 / x;
  if (m == 0.0) { r = bitcast<f32>(bitcast<u32>(infinity()) | sign); }
  if (bitcast<u32>(m) == 0x7f800000u) { r = bitcast<f32>(sign); }
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "sigmoid_of",
        "",
        "fn sigmoid_of(x: f32) -> f32 { return select(1.0 / (1.0 + exp(clamp(-x, -150.0, 88.0))), x, is_nan(x)); }\n",
    ),
    (
        "tanh_of",
        "",
        "fn tanh_of(x: f32) -> f32 { return select(tanh(clamp(x, -20.0, 20.0)), x, is_nan(x)); }\n",
    ),
    (
        "relu_of",
        "inline FLOAT relu_of(FLOAT x) { return x < (FLOAT)(0.0f) ? (FLOAT)(0.0f) : x; }\n",
        // The bits of the numbers below 0 are consecutive. Those of NaN follow them.
        "fn relu_of(x: f32) -> f32 { return select(x, 0.0, bitcast<u32>(x) - 0x80000001u < 0x7f800000u); }\n",
    ),
    (
        "sin_of",
        "",
        "fn sin_of(x: f32) -> f32 { return select(nan(), sin(x), is_finite(x)); }\n",
    ),
    (
        "cos_of",
        "",
        "fn cos_of(x: f32) -> f32 { return select(nan(), cos(x), is_finite(x)); }\n",
    ),
    (
        "tan_of",
        "",
        "fn tan_of(x: f32) -> f32 { return select(nan(), tan(x), is_finite(x)); }\n",
    ),
    (
        "sign_of",
        "inline FLOAT sign_of(FLOAT x) { return isnan(x) ? x : sign(x); }\n",
        "fn sign_of(x: f32) -> f32 { return select(sign(x), x, is_nan(x)); }\n",
    ),
    (
        "min_of",
        "inline FLOAT min_of(FLOAT a, FLOAT b) { return isnan(a) ? a : (isnan(b) ? b : fmin(a, b)); }\n",
        "fn min_of(a: f32, b: f32) -> f32 { return select(select(min(a, b), b, is_nan(b)), a, is_nan(a)); }\n",
    ),
    (
        "max_of",
        "inline FLOAT max_of(FLOAT a, FLOAT b) { return isnan(a) ? a : (isnan(b) ? b : fmax(a, b)); }\n",
        "fn max_of(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }\n",
    ),
    // In WGSL, hides the value of x from the compiler, which may replace x - x and 0 * x by 0, and
    // x == x by true.
    (
        "same_of",
        "inline FLOAT same_of(FLOAT x) { return x; }\n",
        "fn same_of(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | hidden_zero()); }\n",
    ),
    (
        "truth_of",
        "inline int truth_of(float x) { return (as_uint(x) & 0x7fffffffu) != 0u ? 1 : 0; }\n",
        "fn truth_of(x: f32) -> i32 { return select(0, 1, (bitcast<u32>(x) & 0x7fffffffu) != 0u); }\n",
    ),
    // Clamps finite numbers to the range of a half. Infinities and NaN are returned unchanged.
    (
        "half_range",
        "inline FLOAT half_range(FLOAT x) { return fabs(x) <= (FLOAT)(3.4028235e38f) ? clamp(x, (FLOAT)(-65504.0f), (FLOAT)(65504.0f)) : x; }\n",
        "fn half_range(x: f32) -> f32 { return select(x, clamp(x, -65504.0, 65504.0), is_finite(x)); }\n",
    ),
    // x rounded to a half: to nearest, ties to even, with subnormals and infinities. Subnormals are
    // rounded to multiples of 2^-24 by adding 0.5, whose last bit has that value.
    (
        "half_of",
        "inline FLOAT half_of(FLOAT x) {
  UINT sign = as_UINT(x) & 0x80000000u, m = as_UINT(x) & 0x7fffffffu;
  UINT y = (m + 0xfffu + ((m >> 13) & 1u)) & 0xffffe000u;
  FLOAT units = convert_FLOAT(as_UINT(as_FLOAT(m) + 0.5f) - 0x3f000000u);
  y = y < (UINT)(0x47800000u) ? y : (UINT)(0x7f800000u);
  y = m < (UINT)(0x38800000u) ? as_UINT(units * 0x1p-24f) : y;
  y = m > (UINT)(0x7f800000u) ? m : y;
  return as_FLOAT(y | sign);
}\n",
        "fn half_of(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  let m = bitcast<u32>(x) & 0x7fffffffu;
  var y = (m + 0xfffu + ((m >> 13u) & 1u)) & 0xffffe000u;
  if (y >= 0x47800000u) { y = 0x7f800000u; }
  if (m < 0x38800000u) { y = bitcast<u32>(f32(bitcast<u32>(bitcast<f32>(m) + 0.5) - 0x3f000000u) * 5.9604645e-8); }
  if (m > 0x7f800000u) { y = m; }
  return bitcast<f32>(y | sign);
}\n",
    ),
    // WGSL's pow is undefined for a negative base; an odd integer exponent keeps the sign.
    (
        "signed_pow",
        "inline FLOAT signed_pow(FLOAT x, FLOAT y) { return pow(x, y); }\n",
        "fn signed_pow(x: f32, y: f32) -> f32 {
  let m = abs(x);
  let whole = abs(y) > 8388608.0 || fract(y) == 0.0;
  let odd = whole && abs(y) < 16777216.0 && fract(y * 0.5) != 0.0;
  let sign = select(0u, bitcast<u32>(x) & 0x80000000u, odd);
  var r = pow(m, y);
  if (m == 0.0 || !is_finite(x) || !is_finite(y) || abs(y * log2(m)) >= 150.0) {
    // What grows beyond all numbers, or vanishes.
    r = select(0.0, infinity(), (m > 1.0) == (y > 0.0));
    if (m == 1.0) { r = 1.0; }
  }
  r = bitcast<f32>(bitcast<u32>(r) | sign);
  if (x < 0.0 && is_finite(x) && !whole) { r = nan(); }
  if (is_nan(x) || is_nan(y)) { r = nan(); }
  return select(r, 1.0, y == 0.0 || x == 1.0);
}\n",
    ),
    (
        "erf_of",
        "inline FLOAT erf_of(FLOAT x) {
  FLOAT size = fabs(x), t = size > 10.0f ? 10.0f : size, s = t * t;
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
  r = select((n * s + 1.2837917e-1) * x + x, select(far, -far, x < 0.0), t > 0.9277344);
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "softplus_of",
        "inline FLOAT softplus_of(FLOAT x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }\n",
        // Near 0 the logarithm is inaccurate because 1 + e rounds; the series is not.
        "fn softplus_of(x: f32) -> f32 {
  let e = exp(-min(abs(x), 150.0));
  let r = max(x, 0.0) + select(log(1.0 + e), e - 0.5 * e * e, e < 1e-3);
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "softsign_of",
        "inline FLOAT softsign_of(FLOAT x) { return x / (1.0f + fabs(x)); }\n",
        "fn softsign_of(x: f32) -> f32 { return select(nan(), x / (1.0 + abs(x)), is_finite(x)); }\n",
    ),
    (
        "hard_swish_of",
        "inline FLOAT hard_swish_of(FLOAT x) { return x * clamp(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f); }\n",
        "fn hard_swish_of(x: f32) -> f32 {
  let r = x * clamp(x * (1.0 / 6.0) + 0.5, 0.0, 1.0);
  return select(select(nan(), x, x > 0.0), r, is_finite(x));
}\n",
    ),
    // WGSL allows errors of thousands of ULPs for asin and acos; atan2 is precise.
    (
        "asin_of",
        "",
        "fn asin_of(x: f32) -> f32 { let v = clamp(x, -1.0, 1.0); return select(nan(), atan2(v, sqrt((1.0 - v) * (1.0 + v))), abs(x) <= 1.0 && !is_nan(x)); }\n",
    ),
    (
        "acos_of",
        "",
        "fn acos_of(x: f32) -> f32 { let v = clamp(x, -1.0, 1.0); return select(nan(), atan2(sqrt((1.0 - v) * (1.0 + v)), v), abs(x) <= 1.0 && !is_nan(x)); }\n",
    ),
    (
        "arctan_of",
        "",
        "fn arctan_of(x: f32) -> f32 { return select(atan(clamp(x, -1e18, 1e18)), x, is_nan(x)); }\n",
    ),
    // Beyond 9, the smaller exponential is negligible. exp(x) is computed as exp(x / 2)^2, so that
    // intermediate values stay finite.
    (
        "sinh_of",
        "",
        "fn sinh_of(x: f32) -> f32 {
  let h = exp(0.5 * min(abs(x), 89.4));
  let far = select(0.5 * h * h, infinity(), abs(x) > 89.415985);
  let r = select(sinh(clamp(x, -9.0, 9.0)), select(far, -far, x < 0.0), abs(x) > 9.0);
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "cosh_of",
        "",
        "fn cosh_of(x: f32) -> f32 {
  let h = exp(0.5 * min(abs(x), 89.4));
  let far = select(0.5 * h * h, infinity(), abs(x) > 89.415985);
  let r = select(cosh(clamp(x, -9.0, 9.0)), far, abs(x) > 9.0);
  return select(r, x, is_nan(x));
}\n",
    ),
    (
        "asinh_of",
        "",
        "fn asinh_of(x: f32) -> f32 {
  let m = abs(x);
  let r = select(asinh(min(m, 1e9)), log(min(m, 3.4e38)) + 0.6931472, m > 1e8);
  let y = bitcast<f32>(bitcast<u32>(r) | (bitcast<u32>(x) & 0x80000000u));
  return select(x, y, is_finite(x));
}\n",
    ),
    (
        "acosh_of",
        "",
        "fn acosh_of(x: f32) -> f32 {
  let r = select(acosh(clamp(x, 1.0, 1e9)), log(clamp(x, 1.0, 3.4e38)) + 0.6931472, x > 1e8);
  return select(select(x, r, is_finite(x)), nan(), x < 1.0);
}\n",
    ),
    (
        "atanh_of",
        "",
        "fn atanh_of(x: f32) -> f32 {
  let sign = bitcast<u32>(x) & 0x80000000u;
  var r = atanh(clamp(x, -0.99999994, 0.99999994));
  if (abs(x) == 1.0) { r = bitcast<f32>(bitcast<u32>(infinity()) | sign); }
  return select(nan(), r, abs(x) <= 1.0 && !is_nan(x));
}\n",
    ),
    // Quotient and remainder are 0 for a divisor of 0. The smallest integer divided by -1 wraps
    // around.
    (
        "int_div",
        "inline INTEGER int_div(INTEGER x, INTEGER y) { return y == 0 ? 0 : y == -1 ? (INTEGER)(0 - (UNSIGNED)x) : x / y; }\n",
        "fn int_div(x: INTEGER, y: INTEGER) -> INTEGER { let q = x / select(y, INTEGER(1), y == 0 || y == -1); return select(select(q, -x, y == -1), INTEGER(0), y == 0); }\n",
    ),
    (
        "uint_div",
        "inline UNSIGNED uint_div(UNSIGNED x, UNSIGNED y) { return y == 0 ? 0 : x / y; }\n",
        "fn uint_div(x: UNSIGNED, y: UNSIGNED) -> UNSIGNED { return select(x / select(y, UNSIGNED(1), y == 0), UNSIGNED(0), y == 0); }\n",
    ),
    (
        "int_rem",
        "inline INTEGER int_rem(INTEGER x, INTEGER y) { return y == 0 || y == -1 ? 0 : x % y; }\n",
        "fn int_rem(x: INTEGER, y: INTEGER) -> INTEGER { return x % select(y, INTEGER(1), y == 0 || y == -1); }\n",
    ),
    (
        "uint_rem",
        "inline UNSIGNED uint_rem(UNSIGNED x, UNSIGNED y) { return y == 0 ? 0 : x % y; }\n",
        "fn uint_rem(x: UNSIGNED, y: UNSIGNED) -> UNSIGNED { return x % select(y, UNSIGNED(1), y == 0); }\n",
    ),
    (
        "int_mod",
        "inline INTEGER int_mod(INTEGER x, INTEGER y) { INTEGER r = y == 0 || y == -1 ? 0 : x % y; return r != 0 && (r < 0) != (y < 0) ? r + y : r; }\n",
        "fn int_mod(x: INTEGER, y: INTEGER) -> INTEGER { let r = x % select(y, INTEGER(1), y == 0 || y == -1); return select(r, r + y, r != 0 && (r ^ y) < 0); }\n",
    ),
    // Truncates a float, saturates it to 64 bits, and keeps the low 32 bits. The parts of the float
    // above and below 2^32 are exact.
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
    // Truncates a float and saturates it to 32 bits.
    (
        "int_near",
        "inline int int_near(float x) { return convert_int_sat(x); }\n",
        "fn int_near(x: f32) -> i32 {
  if ((bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u) { return 0; }
  return select(select(i32(x), 2147483647, x >= 2147483648.0), -2147483647 - 1, x <= -2147483648.0);
}\n",
    ),
    // Truncates a float and saturates it to 64 bits, signed and unsigned.
    (
        "long_of",
        "inline long long_of(float x) { return isnan(x) ? 0 : convert_long_sat(x); }\n",
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
        "inline long ulong_of(float x) { return isnan(x) ? 0 : (long)convert_ulong_sat(x); }\n",
        "fn ulong_of(x: f32) -> i64 {
  if (!(x > 0.0) || (bitcast<u32>(x) & 0x7FFFFFFFu) > 0x7F800000u) { return 0li; }
  if (x >= 18446744073709551616.0) { return i64(-1); }
  let high = trunc(x * 2.3283064e-10);
  return i64(u64(u32(high)) * 4294967296lu + u64(u32(x - high * 4294967296.0)));
}\n",
    ),
    // Division in WGSL is not exact. So each step subtracts the divisor times the largest power of
    // two that fits, which is exact. The product is formed by adding to the exponent.
    (
        "float_mod",
        "inline FLOAT float_mod(FLOAT x, FLOAT y) { return fmod(x, y); }\n",
        "fn float_mod(x: f32, y: f32) -> f32 {
  let d = abs(y);
  var r = abs(x);
  for (var i = 0u; i < 300u && r >= d; i++) {
    let bits = bitcast<u32>(d);
    var part = bits + (((bitcast<u32>(r) >> 23u) - (bits >> 23u)) << 23u);
    part = select(part, part - 0x800000u, bitcast<f32>(part) > r);
    r -= bitcast<f32>(part);
  }
  r = bitcast<f32>(bitcast<u32>(r) | (bitcast<u32>(x) & 0x80000000u));
  return select(nan(), r, is_finite(x) && d > 0.0 && !is_nan(y));
}\n",
    ),
    (
        "floored_float_mod",
        "inline FLOAT floored_float_mod(FLOAT x, FLOAT y) {
  FLOAT r = fmod(x, y);
  return r == 0.0f ? copysign(r, y) : ((r < 0.0f) != (y < 0.0f) ? r + y : r);
}\n",
        "fn floored_float_mod(x: f32, y: f32) -> f32 {
  let r = float_mod(x, y);
  let zero = bitcast<f32>(bitcast<u32>(y) & 0x80000000u);
  return select(select(r, r + y, (r < 0.0) != (y < 0.0)), zero, r == 0.0);
}\n",
    ),
];
