// Shared by kernels of the integer domain: bytes of words, and requantization of sums to bytes.
// With FIXED, it rounds as gemmlowp does; otherwise it is a multiplication in f32, rounded to
// nearest, ties to even.
#define BYTE(w, b) ((int)((w) << (24u - 8u * (b))) >> 24)
inline int4 four_bytes(uint w) { return (int4)(BYTE(w, 0), BYTE(w, 1), BYTE(w, 2), BYTE(w, 3)); }
inline uint word_of(int4 v) { return as_uint((v.x & 255) | (v.y & 255) << 8 | (v.z & 255) << 16 | v.w << 24); }

// The high half of 2 * a * b, rounded to nearest, ties upward. b is not negative.
inline int doubling_high(int a, int b) {
  uint low = (uint)a * (uint)b, moved = low + 0x40000000u;
  int high = mul_hi(a, b) + (moved < low ? 1 : 0);
  return as_int(((uint)high << 1u) | (moved >> 31u));
}

// x / 2^n, rounded to nearest, ties away from zero.
inline int divided(int x, uint n) {
  int mask = (int)((1u << n) - 1u), threshold = (mask >> 1) + (x < 0 ? 1 : 0);
  return (x >> n) + ((x & mask) > threshold ? 1 : 0);
}

// x * mantissa * 2^(shift - 31), rounded twice. A left shift saturates.
inline int multiplied(int x, int mantissa, int shift) {
  int left = max(shift, 0), most = 2147483647 >> left, least = (-2147483647 - 1) >> left;
  int moved = x > most ? 2147483647 : x < least ? -2147483647 - 1 : (int)((uint)x << (uint)left);
  return divided(doubling_high(moved, mantissa), (uint)max(-shift, 0));
}

// x + zero for an 8-bit zero point, saturated.
inline int add_saturated(int x, int zero) { return add_sat(x, zero); }

inline int within(int rounded, int zero, int low, int high) { return clamp(add_saturated(rounded, zero), low, high); }

// A sum times the factor, plus the zero point, clamped to the bounds.
inline int by_float(int sum, float factor, int zero, int low, int high) {
  float v = rint(convert_float_rte(sum) * factor);
  return convert_int(clamp(v, (float)(low - zero), (float)(high - zero))) + zero;
}

// Compares bits, since compilers may assume that there is no NaN.
inline bool is_nan(float v) { return (as_uint(v) & 0x7FFFFFFFu) > 0x7F800000u; }

// The byte to which a float is quantized, off by at most one.
inline int guess(float v, float inverse, int zero, int low, int high) {
  if (is_nan(v)) return clamp(zero, low, high);
  return convert_int(clamp(rint(v * inverse), (float)(low - zero), (float)(high - zero))) + zero;
}

// Positions in a table of thresholds: the smallest float of byte q, and that of the next byte.
inline uint least_of(int q) { return (uint)(q + 128); }
inline uint next_of(int q) { return min((uint)(q + 129), 255u); }

// The exact byte of a float, from a guess q and the bits of the thresholds of q and of the next
// byte. It is the same on all devices.
inline int settled(float v, int q, uint least, uint next) {
  if (is_nan(v)) return q;
  if (v < as_float(least)) return q - 1;
  return q < 127 && v >= as_float(next) ? q + 1 : q;
}

// Requantizes a sum with the factor of channel `i`. With FIXED, `factors` holds the mantissas of
// all channels, then the shifts.
#ifdef FIXED
#define SCALED(sum, i, channels, zero, low, high) \
  within(multiplied(sum, as_int(factors[i]), as_int(factors[(channels) + (i)])), zero, low, high)
#else
#define SCALED(sum, i, channels, zero, low, high) by_float(sum, as_float(factors[i]), zero, low, high)
#endif
