// Rounds of products of matrices of halves on matrix units. Each warp has four chains, and each
// work-item writes a sum of its own elements.
#include "common/mma"
KERNEL {
  uint lane = get_global_id(0) % 32, a, b;
  HALVES_OF(a, p.factor, p.addend);
  HALVES_OF(b, p.addend, p.factor * (float)lane);
  float s0[4] = {0.0f, 0.0f, 0.0f, 0.0f}, s1[4] = {0.0f, 0.0f, 0.0f, 0.0f}, s2[4] = {0.0f, 0.0f, 0.0f, 0.0f},
      s3[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (uint i = 0; i < p.rounds; i++) {
    MMA(s0, a, b, a, b, a, b);
    MMA(s1, a, b, a, b, b, a);
    MMA(s2, b, a, b, a, a, b);
    MMA(s3, b, a, b, a, b, a);
  }
  y_put(get_global_id(0), s0[0] + s1[1] + s2[2] + s3[3] + s0[3] + s1[2] + s2[1] + s3[0]);
}
