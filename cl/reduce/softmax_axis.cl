// Along an inner axis of `cols` elements, `inner` apart: y = exp(x - max) / sum, its logarithm
// (LOG), or 1 for the first of the largest elements and 0 for others (HARDMAX). A work-item
// computes RUN neighbouring rows.
#define VECTOR CAT(float, RUN)
#define INTS CAT(int, RUN)

KERNEL {
  uint runs = (p.inner + RUN - 1) / RUN;
  if (get_global_id(0) >= p.outer * runs) return;
  uint first = get_global_id(0) % runs * RUN, count = min((uint)RUN, p.inner - first);
  uint base = get_global_id(0) / runs * p.cols * p.inner + first;
  float lane[RUN];
  // Missing rows repeat the last row.
#define LOAD(v, c) \
  VECTOR v; \
  if (count == RUN) v = x_run(RUN, base + (c) * p.inner); \
  else { \
    for (uint i = 0; i < RUN; i++) lane[i] = x_at(base + (c) * p.inner + min(i, count - 1)); \
    v = CAT(vload, RUN)(0, lane); \
  }
  VECTOR top = (VECTOR)(LEAST);
  INTS place = (INTS)(0);
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
#ifdef HARDMAX
    // NaN counts as the largest.
    place = select(place, (INTS)((int)c), (v > top) | ((v != v) & (top == top)));
    top = (top != top) | (top > v) ? top : v;
#else
    top = fmax(top, v);
#endif
  }
  VECTOR sum = (VECTOR)(0.0f);
#ifndef HARDMAX
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
    sum += exp(v - top);
  }
#endif
  for (uint c = 0; c < p.cols; c++) {
    LOAD(v, c)
#ifdef HARDMAX
    v = select((VECTOR)(0.0f), (VECTOR)(1.0f), place == (INTS)((int)c));
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
