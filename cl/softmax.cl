// y[r, :] = exp(x[r, :] - max) / sum, or with LOG its logarithm. One work-group a row, or a pair of rows where an odd row length could make two
// rows share a 32-bit word (ROWS = 2); with ITEM a work-item a row, by vectors.
#include "common/reduce"
#include "common/lanes"

#ifdef ITEM
KERNEL {
  uint row = get_global_id(0), start = row * p.cols;
  if (row >= p.rows) return;
  float16 part = (float16)(LEAST);
  float top = LEAST, sum = 0.0f;
  EACH_LANE(p.cols, part = fmax(part, x_run(16, start + i)), top = fmax(top, x_at(start + i)))
  top = fmax(top, lanes_max(part));
  part = (float16)(0.0f);
  EACH_LANE(p.cols, part += exp(x_run(16, start + i) - top), sum += exp(x_at(start + i) - top))
  sum = fmax(sum + lanes_sum(part), 1.0e-30f);
#ifdef LOG
  top += log(sum);
  EACH_LANE(p.cols, y_put_run(16, start + i, x_run(16, start + i) - top), y_put(start + i, x_at(start + i) - top))
#else
  EACH_LANE(p.cols, y_put_run(16, start + i, exp(x_run(16, start + i) - top) / sum), y_put(start + i, exp(x_at(start + i) - top) / sum))
#endif
}
#else
KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * ROWS;
  float top[ROWS], inverse[ROWS];
  for (uint j = 0; j < ROWS; j++) {
    uint n = first + j < p.rows ? p.cols : 0;
    float m = -3.4028235e38f;
    for (uint i = lid; i < n; i += WG) m = fmax(m, x_at((first + j) * p.cols + i));
    top[j] = wg_max(m, scratch);
    float s = 0.0f;
    for (uint i = lid; i < n; i += WG) s += exp(x_at((first + j) * p.cols + i) - top[j]);
    s = fmax(wg_sum(s, scratch), 1.0e-30f);
#ifdef LOG
    inverse[j] = log(s);
#else
    inverse[j] = 1.0f / s;
#endif
  }
  uint begin = first * p.cols;
  uint end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (uint i = begin / 2 + lid; 2 * i < end; i += WG) {
    float2 v = x_at2(i);
    uint a = 2 * i - begin >= p.cols ? ROWS - 1 : 0, b = 2 * i + 1 - begin >= p.cols ? ROWS - 1 : 0;
#ifdef LOG
    y_put2(i, (float2)(v.x - top[a] - inverse[a], v.y - top[b] - inverse[b]));
#else
    y_put2(i, (float2)(exp(v.x - top[a]) * inverse[a], exp(fmin(v.y - top[b], 0.0f)) * inverse[b]));
#endif
  }
}
#endif
