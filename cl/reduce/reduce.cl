// y[r] = the elements c of row r, transformed by MAP and combined by JOIN, followed by FINISH. If
// MAP is EXPONENTIAL, the terms are exp(x - max(x)), and max(x) is added at the end.
//
// The rows are split by n1 and n2, their elements by m1 and m2. A work-group, or with ITEM a
// work-item, computes a pair of rows.
#include "common/reduce"
// MAP:
#define ABSOLUTE 1
#define SQUARED 2
#define EXPONENTIAL 3
// JOIN, besides sums:
#define LARGEST 1
#define SMALLEST 2
#define MULTIPLIED 3
// FINISH:
#define MEAN 1
#define ROOT 2
#define LOGARITHM 3

#ifdef FLAT
#define ELEMENT(base, c) x_at((base) + (c))
#else
#ifdef ONE_AXIS
#define ELEMENT(base, c) x_at((base) + (c) * p.r0)
#else
#define ELEMENT(base, c) x_at((base) + (c) % p.m1 * p.r0 + (c) / p.m1 % p.m2 * p.r1 + (c) / p.m1 / p.m2 * p.r2)
#endif
#endif

inline uint row_start(uint row, Params p) {
#ifdef FLAT
  return row * p.cols;
#else
  return row % p.n1 * p.k0 + row / p.n1 % p.n2 * p.k1 + row / p.n1 / p.n2 * p.k2;
#endif
}

inline ELEM term(ELEM v, ELEM top) {
  if (MAP == ABSOLUTE) return v < 0 ? -v : v;
  if (MAP == SQUARED) return v * v;
  if (MAP == EXPONENTIAL) return (ELEM)exp((float)(v - top));
  return v;
}

#define NEUTRAL (JOIN == LARGEST ? LEAST : JOIN == SMALLEST ? GREATEST : JOIN == MULTIPLIED ? 1 : 0)

inline ELEM join(ELEM a, ELEM b) {
  if (JOIN == LARGEST) return larger(a, b);
  if (JOIN == SMALLEST) return smaller(a, b);
  if (JOIN == MULTIPLIED) return a * b;
  return a + b;
}

#ifdef ITEM
#define BEGIN 0
#define STEP 1
#define MAX_OF_ALL(v) v
#define JOIN_ALL(v) v
#else
#define BEGIN get_local_id(0)
#define STEP WG
#define MAX_OF_ALL(v) wg_max(v, scratch)
#define JOIN_ALL(v) \
  (JOIN == LARGEST ? wg_max(v, scratch) : JOIN == SMALLEST ? -wg_max(-(v), scratch) : wg_sum(v, scratch))
#endif

KERNEL {
#ifdef ITEM
  uint pair = get_global_id(0);
  if (2 * pair >= p.rows) return;
#else
  __local float scratch[WG + WG / 8];
  uint pair = get_group_id(0);
#endif
  ELEM2 v = (ELEM2)(0);
  for (uint h = 0; h < 2; h++) {
    uint base = row_start(min(2 * pair + h, p.rows - 1), p);
    ELEM top = 0;
    if (MAP == EXPONENTIAL) {
      top = LEAST;
      for (uint c = BEGIN; c < p.cols; c += STEP) top = larger(top, ELEMENT(base, c));
      top = MAX_OF_ALL(top);
      // If the largest element is infinite or NaN, nothing is subtracted, so that it reaches the
      // sum.
      if (!isfinite((float)top)) top = 0;
    }
    ELEM s = NEUTRAL;
    for (uint c = BEGIN; c < p.cols; c += STEP) s = join(s, term(ELEMENT(base, c), top));
    s = JOIN_ALL(s);
    if (FINISH == MEAN) s /= (ELEM)p.cols;
    if (FINISH == ROOT) s = (ELEM)sqrt((float)s);
    if (FINISH == LOGARITHM) s = (ELEM)log((float)s) + top;
    v = h == 0 ? (ELEM2)(s, 0) : (ELEM2)(v.x, s);
  }
#ifndef ITEM
  if (get_local_id(0) == 0)
#endif
  y_put2(pair, v);
}
