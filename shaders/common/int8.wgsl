// Shared by kernels of the integer domain: bytes of words, and requantization of sums to bytes.
// With FIXED, it rounds as gemmlowp does; otherwise it is a multiplication in f32, rounded to
// nearest, ties to even.
fn four_bytes(w: u32) -> vec4<i32> {
  return vec4<i32>(vec4<u32>(w) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
}

fn word_of(a: vec4<i32>) -> u32 {
  let v = vec4<u32>(a & vec4<i32>(255)) << vec4<u32>(0u, 8u, 16u, 24u);
  return v.x | v.y | v.z | v.w;
}

// The high half of 2 * a * b, rounded to nearest, ties upward. b is not negative. The 64-bit
// product is assembled from 16-bit halves.
fn doubling_high(a: i32, b: i32) -> i32 {
  let x = bitcast<u32>(a);
  let y = bitcast<u32>(b);
  let middle = (x >> 16u) * (y & 0xFFFFu);
  let other = (x & 0xFFFFu) * (y >> 16u);
  let bottom = (x & 0xFFFFu) * (y & 0xFFFFu);
  let carry = (bottom >> 16u) + (middle & 0xFFFFu) + (other & 0xFFFFu);
  let low = (carry << 16u) | (bottom & 0xFFFFu);
  // This is the unsigned product. As an unsigned number, a negative `a` is too large by 2^32.
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

// x * mantissa * 2^(shift - 31), rounded twice. A left shift saturates.
fn multiplied(x: i32, mantissa: i32, shift: i32) -> i32 {
  let left = u32(max(shift, 0));
  var moved = x << left;
  if (x > (2147483647 >> left)) { moved = 2147483647; }
  if (x < ((-2147483647 - 1) >> left)) { moved = -2147483647 - 1; }
  return divided(doubling_high(moved, mantissa), u32(max(-shift, 0)));
}

// x + zero for an 8-bit zero point, saturated.
fn add_saturated(x: i32, zero: i32) -> i32 { return clamp(x, -1073741824, 1073741823) + zero; }

fn within(rounded: i32, zero: i32, low: i32, high: i32) -> i32 {
  return clamp(add_saturated(rounded, zero), low, high);
}

// A sum times the factor, plus the zero point, clamped to the bounds. The sum is converted in two
// exact parts and added in f32, which rounds to nearest; the rounding of conversions depends on the
// driver.
fn by_float(sum: i32, factor: f32, zero: i32, low: i32, high: i32) -> i32 {
  let value = f32(sum & ~4095) + f32(sum & 4095);
  return i32(clamp(round(value * factor), f32(low - zero), f32(high - zero))) + zero;
}

// The byte to which a float is quantized, off by at most one.
fn guess(v: f32, inverse: f32, zero: i32, low: i32, high: i32) -> i32 {
  if (is_nan(v)) { return clamp(zero, low, high); }
  return i32(clamp(round(v * inverse), f32(low - zero), f32(high - zero))) + zero;
}

// Positions in a table of thresholds: the smallest float of byte q, and that of the next byte.
fn least_of(q: i32) -> u32 { return u32(q + 128); }
fn next_of(q: i32) -> u32 { return min(u32(q + 129), 255u); }

// The exact byte of a float, from a guess q and the bits of the thresholds of q and of the next
// byte. It is the same on all devices.
fn settled(v: f32, q: i32, least: u32, next: u32) -> i32 {
  if (is_nan(v)) { return q; }
  if (v < bitcast<f32>(least)) { return q - 1; }
  return select(q, q + 1, q < 127 && v >= bitcast<f32>(next));
}
