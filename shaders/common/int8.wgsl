// What kernels of the integer domain share: bytes of words, and the rounding of sums to bytes. FIXED: as gemmlowp rounds; otherwise a
// multiplication in f32, rounded to nearest, ties to even.
fn four_bytes(w: u32) -> vec4<i32> {
  return vec4<i32>(vec4<u32>(w) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

fn word_of(a: vec4<i32>) -> u32 {
  let v = vec4<u32>(a & vec4<i32>(255)) << vec4<u32>(0u, 8u, 16u, 24u);
  return v.x | v.y | v.z | v.w;
}

// The high half of 2 * a * b, rounded to nearest, ties upward. b is not negative. The 64-bit product is put together from halves.
fn doubling_high(a: i32, b: i32) -> i32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  let middle = (x >> 16u) * (y & 0xFFFFu);
  let other = (x & 0xFFFFu) * (y >> 16u);
  let bottom = (x & 0xFFFFu) * (y & 0xFFFFu);
  let carry = (bottom >> 16u) + (middle & 0xFFFFu) + (other & 0xFFFFu);
  let low = (carry << 16u) | (bottom & 0xFFFFu);
  // Unsigned; a negative `a` stands for 2^32 more.
  var high = (x >> 16u) * (y >> 16u) + (middle >> 16u) + (other >> 16u) + (carry >> 16u);
  if (a < 0) { high -= y; }
  let moved = low + 0x40000000u;
  if (moved < low) { high += 1u; }
  return bitcast<i32>((high << 1u) | (moved >> 31u));
}

// x / 2^n, rounded to nearest, ties away from zero.
fn divided(x: i32, n: u32) -> i32 {
  let mask = bitcast<i32>((1u << n) - 1u);
  let threshold = (mask >> 1u) + select(0, 1, x < 0);
  return (x >> n) + select(0, 1, (x & mask) > threshold);
}

// x times a factor, rounded twice. A shift to the left saturates.
fn multiplied(x: i32, mantissa: i32, shift: i32) -> i32 {
  let left = u32(max(shift, 0));
  var moved = x << left;
  if (x > (2147483647 >> left)) { moved = 2147483647; }
  if (x < ((-2147483647 - 1) >> left)) { moved = -2147483647 - 1; }
  return divided(doubling_high(moved, mantissa), u32(max(-shift, 0)));
}

// x + zero for an 8-bit zero point, saturated.
fn add_saturated(x: i32, zero: i32) -> i32 { return clamp(x, -1073741824, 1073741823) + zero; }

fn within(rounded: i32, zero: i32, low: i32, high: i32) -> i32 { return clamp(add_saturated(rounded, zero), low, high); }

// A sum times the factor with these bits, plus the zero point, within the bounds. The conversion of large sums is rounded as a sum of two floats,
// since drivers may round conversions as they like.
fn by_float(sum: i32, factor: f32, zero: i32, low: i32, high: i32) -> i32 {
  let value = f32(sum & ~4095) + f32(sum & 4095);
  return i32(clamp(round(value * factor), f32(low - zero), f32(high - zero))) + zero;
}

// NaN; its bits are compared, since drivers may assume that there is none.
fn is_nan(v: f32) -> bool { return (bitcast<u32>(v) & 0x7FFFFFFFu) > 0x7F800000u; }

// The byte of a float, or the one below or above it.
fn guess(v: f32, inverse: f32, zero: i32, low: i32, high: i32) -> i32 {
  if (is_nan(v)) { return clamp(zero, low, high); }
  return i32(clamp(round(v * inverse), f32(low - zero), f32(high - zero))) + zero;
}

// Where a table has the least float of byte q, and that of the next one.
fn least_of(q: i32) -> u32 { return u32(q + 128); }
fn next_of(q: i32) -> u32 { return min(u32(q + 129), 255u); }

// The byte of a float for a guess q and the bits of these two floats, so that all devices agree.
fn settled(v: f32, q: i32, least: u32, next: u32) -> i32 {
  if (is_nan(v)) { return q; }
  if (v < bitcast<f32>(least)) { return q - 1; }
  return select(q, q + 1, q < 127 && v >= bitcast<f32>(next));
}
