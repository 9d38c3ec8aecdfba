// Quantizes floats [.., channels, inner] to bytes [.., inner, 4 * words]. `thresholds` holds the
// smallest float of each byte. A work-item computes one word.
#include "common/int8"

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, from = row / p.inner * p.channels * p.inner + row % p.inner, v = 0;
  for (uint b = 0; b < 4; b++) {
    uint c = 4 * word + b;
    int q = clamp(p.zero, p.low, p.high);
    if (c < p.channels) {
      float f = x_at(from + c * p.inner);
      q = guess(f, p.inverse, p.zero, p.low, p.high);
      q = settled(f, q, thresholds[least_of(q)], thresholds[next_of(q)]);
    }
    v |= ((uint)q & 255u) << (8u * b);
  }
  y[i] = v;
}
