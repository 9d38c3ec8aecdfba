// Dequantizes bytes [.., inner, stride] to floats [.., channels, inner]. A work-item computes two
// neighbouring results.
#include "common/int8"

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1), b = i % p.inner, c = i / p.inner % p.channels,
        outer = i / p.inner / p.channels;
    uint at = (outer * p.inner + b) * p.stride + c;
    v[h] = p.scale * (float)(BYTE(x[at / 4u], at % 4u) - p.zero);
  }
  y_put2(pair, (float2)(v[0], v[1]));
}
