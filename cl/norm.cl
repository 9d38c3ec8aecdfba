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
#endif
