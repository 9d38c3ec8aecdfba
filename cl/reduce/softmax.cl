// y[r, :] = exp(x[r, :] - max) / sum, or with LOG its logarithm. A work-group computes a row, or a
// pair of rows if an odd row length could make two rows share a 32-bit word (ROWS = 2).
#include "common/reduce"

KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  // Of the first and the last row, which may be the same.
  float2 top = (float2)(0.0f), inverse = (float2)(0.0f);
  for (uint j = 0; j < ROWS; j++) {
    uint n = first + j < p.rows ? p.cols : 0;
    float m = LEAST;
    for (uint i = lid; i < n; i += WG) m = fmax(m, x_at((first + j) * p.cols + i));
    m = wg_max(m, scratch);
    float s = 0.0f;
    for (uint i = lid; i < n; i += WG) s += exp(x_at((first + j) * p.cols + i) - m);
    // If a row contains infinity or NaN, or only -infinity, all its results are NaN.
    s = wg_sum(s, scratch);
#ifdef LOG
    s = log(s);
#else
    s = 1.0f / s;
#endif
    top = j == 0 ? (float2)(m) : (float2)(top.x, m);
    inverse = j == 0 ? (float2)(s) : (float2)(inverse.x, s);
  }
  uint begin = first * p.cols;
  uint end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (uint i = begin / 2 + lid; 2 * i < end; i += WG) {
    float2 v = x_at2(i);
    bool a = 2 * i - begin >= p.cols, b = 2 * i + 1 - begin >= p.cols;
    float2 t = (float2)(a ? top.y : top.x, b ? top.y : top.x),
        f = (float2)(a ? inverse.y : inverse.x, b ? inverse.y : inverse.x);
#ifdef LOG
    y_put2(i, v - t - f);
#else
    y_put2(i, (float2)(exp(v.x - t.x), exp(fmin(v.y - t.y, 0.0f))) * f);
#endif
  }
}
