// Converts bytes [.., inner, stride] to integers [.., channels, inner] and adds `offset`. A
// work-item computes two neighbouring results.
#include "common/int8"

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  int v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1), b = i % p.inner, c = i / p.inner % p.channels,
        outer = i / p.inner / p.channels;
    uint at = (outer * p.inner + b) * p.stride + c;
    v[h] = BYTE(x[at / 4u], at % 4u) + p.offset;
  }
  y_put2(pair, (int2)(v[0], v[1]));
}
