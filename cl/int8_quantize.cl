// Floats [.., channels, inner] as bytes [.., inner, 4 * words]. Thresholds hold the least float of each byte, so that all devices agree: a guess by
// the reciprocal of the scale is off by one at most. A work-item computes one word.
#include "common/int8"

inline int quantized(float v, __global const uint *thresholds, const Params p) {
  int q = convert_int(clamp(rint(v * p.inverse), (float)(p.low - p.zero), (float)(p.high - p.zero))) + p.zero;
  // Not a number.
  if ((as_uint(v) & 0x7FFFFFFFu) > 0x7F800000u) return clamp(p.zero, p.low, p.high);
  if (v < as_float(thresholds[q + 128])) q--;
  if (q < 127 && v >= as_float(thresholds[q + 129])) q++;
  return q;
}

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, from = row / p.inner * p.channels * p.inner + row % p.inner, v = 0;
  for (uint b = 0; b < 4; b++) {
    uint c = 4 * word + b;
    int q = c < p.channels ? quantized(x_at(from + c * p.inner), thresholds, p) : clamp(p.zero, p.low, p.high);
    v |= ((uint)q & 255u) << (8u * b);
  }
  y[i] = v;
}
