// y[r] = factor * sum(x[r, :]), or with MAXIMUM factor * max(factor * x[r, :]) (factor -1 makes the minimum). A work-group computes
// a pair of rows.
#include "common/reduce"

KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0), first = 2 * get_group_id(0);
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint row = min(first + h, p.rows - 1);
#ifdef MAXIMUM
    float s = -3.0e38f;
    for (uint i = lid; i < p.cols; i += WG) s = fmax(s, p.factor * x_at(row * p.cols + i));
    v[h] = p.factor * wg_max(s, scratch);
#else
    float s = 0.0f;
    for (uint i = lid; i < p.cols; i += WG) s += x_at(row * p.cols + i);
    v[h] = p.factor * wg_sum(s, scratch);
#endif
  }
  if (lid == 0) y_put2(get_group_id(0), (float2)(v[0], v[1]));
}
