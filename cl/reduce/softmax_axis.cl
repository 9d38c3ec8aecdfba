// Along an inner axis of `cols` elements, `inner` apart: y = exp(x - max) / sum, its logarithm (LOG), or 1 for the first of the largest
// and 0 for others (HARD). A work-item computes RUN neighbouring rows.
#define V CAT(float, RUN)
#define I CAT(int, RUN)

KERNEL {
  uint runs = (p.inner + RUN - 1) / RUN;
  if (get_global_id(0) >= p.outer * runs) return;
  uint first = get_global_id(0) % runs * RUN, count = min((uint)RUN, p.inner - first);
  uint base = get_global_id(0) / runs * p.cols * p.inner + first;
  float lane[RUN];
  // Rows that are not there repeat the last one.
#define LOAD(v, c) \
  V v; \
  if (count == RUN) v = x_run(RUN, base + (c) * p.inner); \
  else { \
    for (uint i = 0; i < RUN; i++) lane[i] = x_at(base + (c) * p.inner + min(i, count - 1)); \
    v = CAT(vload, RUN)(0, lane); \
  }
  V top = (V)(LEAST);
  I place = (I)(0);
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
#ifdef HARD
    // NaN counts as the largest.
    place = select(place, (I)((int)c), (v > top) | ((v != v) & (top == top)));
    top = (top != top) | (top > v) ? top : v;
#else
    top = fmax(top, v);
#endif
  }
  V sum = (V)(0.0f);
#ifndef HARD
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
    sum += exp(v - top);
  }
#endif
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
#ifdef HARD
    v = select((V)(0.0f), (V)(1.0f), place == (I)((int)c));
#else
#ifdef LOG
    v = v - top - log(sum);
#else
    v = exp(v - top) / sum;
#endif
#endif
    if (count == RUN) y_put_run(RUN, base + c * p.inner, v);
    else {
      CAT(vstore, RUN)(v, 0, lane);
      for (uint i = 0; i < count; i++) y_put(base + c * p.inner + i, lane[i]);
    }
  }
}
