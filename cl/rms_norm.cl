// y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + epsilon) * scale. One work-group a row, or a pair of rows where
// an odd row length could make two rows share a 32-bit word (ROWS = 2).
#include "common/reduce"

KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  float inverse[ROWS];
  for (uint j = 0; j < ROWS; j++) {
    float s = 0.0f;
    if (first + j < p.rows)
      for (uint i = lid; i < p.cols; i += WG) {
        float v = x_at((first + j) * p.cols + i);
        s += v * v;
      }
    inverse[j] = rsqrt(wg_sum(s, scratch) / (float)p.cols + p.epsilon);
  }
  uint begin = first * p.cols;
  uint end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (uint i = begin / 2 + lid; 2 * i < end; i += WG) {
    float2 v = x_at2(i);
    uint a = 2 * i - begin, b = a + 1;
    v.x *= inverse[a >= p.cols ? ROWS - 1 : 0] * scale_at(a % p.cols);
    v.y *= inverse[b >= p.cols ? ROWS - 1 : 0] * scale_at(b % p.cols);
    y_put2(i, v);
  }
}
