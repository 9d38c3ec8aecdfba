// y[r, c] = (x[r, c] - mean) / sqrt(variance + epsilon) * scale + bias, where mean and variance are given, or those of row r; without
// CENTER the mean is 0. With EACH a scale and a bias belong to each column, else to `run` neighbours, and rows take turns in
// `sets` sets of `per`. One work-group a row, or a pair of rows where an odd row length could make two rows share a 32-bit word
// (ROWS = 2); with ITEM a work-item a row, by vectors.
#include "common/reduce"
#include "common/lanes"

#ifdef EACH
#define PLACE(row, c) (c)
#else
#define PLACE(row, c) ((row) % p.sets * p.per + (c) / p.run)
#endif

#ifdef ITEM
KERNEL {
  uint row = get_global_id(0), start = row * p.cols;
  if (row >= p.rows) return;
  float centre = 0.0f, spread = 0.0f;
#ifdef HAS_MEAN
  centre = mean_at(row % p.sets);
  spread = variance_at(row % p.sets);
#else
  float16 part = (float16)(0.0f);
#ifdef CENTER
  EACH_LANE(p.cols, part += x_run(16, start + i), centre += x_at(start + i))
  centre = (centre + lanes_sum(part)) / (float)p.cols;
  part = (float16)(0.0f);
#endif
  EACH_LANE(p.cols, float16 v = x_run(16, start + i) - centre; part += v * v, float v = x_at(start + i) - centre; spread += v * v)
  spread = (spread + lanes_sum(part)) / (float)p.cols;
#endif
  float inverse = rsqrt(spread + p.epsilon);
#ifdef EACH
#ifdef HAS_SCALE
#define SCALED(v, scale) v *= scale
#else
#define SCALED(v, scale)
#endif
#ifdef HAS_BIAS
#define MOVED(v, bias) v += bias
#else
#define MOVED(v, bias)
#endif
  EACH_LANE(p.cols,
    float16 v = (x_run(16, start + i) - centre) * inverse; SCALED(v, scale_run(16, i)); MOVED(v, bias_run(16, i)); y_put_run(16, start + i, v),
    float v = (x_at(start + i) - centre) * inverse; SCALED(v, scale_at(i)); MOVED(v, bias_at(i)); y_put(start + i, v))
#else
  for (uint first = 0; first < p.cols; first += p.run) {
    float factor = inverse, term = 0.0f;
#ifdef HAS_SCALE
    factor *= scale_at(PLACE(row, first));
#endif
#ifdef HAS_BIAS
    term = bias_at(PLACE(row, first));
#endif
    uint from = start + first;
    EACH_LANE(p.run, y_put_run(16, from + i, (x_run(16, from + i) - centre) * factor + term),
      y_put(from + i, (x_at(from + i) - centre) * factor + term))
  }
#endif
}
#else
KERNEL {
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  // Of the first row and the last, which may be one.
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
      // Behind an odd end there is one element more, for which there may be no column.
      c = min(c, p.cols - 1);
      float one = ((h == 0 ? v.x : v.y) - (last ? shift.y : shift.x)) * (last ? inverse.y : inverse.x);
#ifdef HAS_SCALE
      one *= scale_at(PLACE(row, c));
#endif
#ifdef HAS_BIAS
      one += bias_at(PLACE(row, c));
#endif
      out = h == 0 ? (float2)(one, v.y) : (float2)(out.x, one);
    }
    y_put2(i, out);
  }
}
#endif
