// y[r, c] = (x[r, c] - mean) / sqrt(variance + epsilon) * scale + bias, where mean and variance are
// operands or those of row r. Without CENTER, the mean is 0. With BY_COLUMN, each column has a
// scale and a bias; otherwise, `run` neighbours share them, and row r uses set r % sets, of `per`
// elements. A work-group computes a row, or a pair of rows if an odd row length could make two rows
// share a 32-bit word (ROWS = 2).
#include "common/reduce"

#ifdef BY_COLUMN
#define SCALE_INDEX(row, c) (c)
#else
#define SCALE_INDEX(row, c) ((row) % p.sets * p.per + (c) / p.run)
#endif

KERNEL {
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  // Of the first and the last row, which may be the same.
  float2 shift = (float2)(0.0f), inverse = (float2)(0.0f);
#ifndef HAS_MEAN
  __local float scratch[WG + WG / 8];
#endif
  for (uint j = 0; j < ROWS; j++) {
    float spread, centre = 0.0f;
#ifdef HAS_MEAN
    uint turn = min(first + j, p.rows - 1) % p.sets;
    centre = mean_at(turn);
    spread = variance_at(turn);
#else
    uint n = first + j < p.rows ? p.cols : 0, start = (first + j) * p.cols;
    float s = 0.0f;
#ifdef CENTER
    for (uint i = lid; i < n; i += WG) s += x_at(start + i);
    centre = wg_sum(s, scratch) / (float)p.cols;
    s = 0.0f;
#endif
    for (uint i = lid; i < n; i += WG) {
      float v = x_at(start + i) - centre;
      s += v * v;
    }
    spread = wg_sum(s, scratch) / (float)p.cols;
#endif
    spread = rsqrt(spread + p.epsilon);
    shift = j == 0 ? (float2)(centre) : (float2)(shift.x, centre);
    inverse = j == 0 ? (float2)(spread) : (float2)(inverse.x, spread);
  }
  uint begin = first * p.cols;
  uint end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (uint i = begin / 2 + lid; 2 * i < end; i += WG) {
    float2 v = x_at2(i);
    float2 out = v;
    for (uint h = 0; h < 2; h++) {
      uint at = 2 * i + h - begin;
      bool last = at >= p.cols;
      uint row = first + (last ? ROWS - 1 : 0), c = last ? at - p.cols : at;
      // If the end is odd, there is one more element, for which there may be no column.
      c = min(c, p.cols - 1);
      float one = ((h == 0 ? v.x : v.y) - (last ? shift.y : shift.x)) * (last ? inverse.y : inverse.x);
#ifdef HAS_SCALE
      one *= scale_at(SCALE_INDEX(row, c));
#endif
#ifdef HAS_BIAS
      one += bias_at(SCALE_INDEX(row, c));
#endif
      out = h == 0 ? (float2)(one, v.y) : (float2)(out.x, one);
    }
    y_put2(i, out);
  }
}
