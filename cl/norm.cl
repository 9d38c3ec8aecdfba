// y[r, c] = (x[r, c] - mean) / sqrt(variance + epsilon) * scale + bias, where mean and variance are given, or those of row r; without
// CENTER the mean is 0. With EACH a scale and a bias belong to each column, else to `run` neighbours, and rows take turns in
// `sets` sets of `per`. One work-group a row, or a pair of rows where an odd row length could make two rows share a 32-bit word
// (ROWS = 2).
#include "common/reduce"

#ifdef EACH
#define PLACE(row, c) (c)
#else
#define PLACE(row, c) ((row) % p.sets * p.per + (c) / p.run)
#endif

KERNEL {
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  float shift[ROWS], inverse[ROWS];
#ifndef HAS_MEAN
  __local float scratch[WG + WG / 8];
#endif
  for (uint j = 0; j < ROWS; j++) {
    float spread;
#ifdef HAS_MEAN
    uint turn = min(first + j, p.rows - 1) % p.sets;
    shift[j] = mean_at(turn);
    spread = variance_at(turn);
#else
    uint n = first + j < p.rows ? p.cols : 0, start = (first + j) * p.cols;
    float s = 0.0f;
    shift[j] = 0.0f;
#ifdef CENTER
    for (uint i = lid; i < n; i += WG) s += x_at(start + i);
    shift[j] = wg_sum(s, scratch) / (float)p.cols;
    s = 0.0f;
#endif
    for (uint i = lid; i < n; i += WG) {
      float v = x_at(start + i) - shift[j];
      s += v * v;
    }
    spread = wg_sum(s, scratch) / (float)p.cols;
#endif
    inverse[j] = rsqrt(spread + p.epsilon);
  }
  uint begin = first * p.cols;
  uint end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (uint i = begin / 2 + lid; 2 * i < end; i += WG) {
    float2 v = x_at2(i);
    float out[2] = {v.x, v.y};
    for (uint h = 0; h < 2; h++) {
      uint at = 2 * i + h - begin, j = at >= p.cols ? ROWS - 1 : 0, c = at >= p.cols ? at - p.cols : at;
      // Behind an odd end there is one element more, for which there may be no column.
      c = min(c, p.cols - 1);
      out[h] = (out[h] - shift[j]) * inverse[j];
#ifdef HAS_SCALE
      out[h] *= scale_at(PLACE(first + j, c));
#endif
#ifdef HAS_BIAS
      out[h] += bias_at(PLACE(first + j, c));
#endif
    }
    y_put2(i, (float2)(out[0], out[1]));
  }
}
