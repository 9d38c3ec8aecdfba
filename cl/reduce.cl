// y[r] = a sum (or MAXIMUM, MINIMUM, PRODUCT) over the elements c of row r of their values (or ABS, SQUARE), after which MEAN divides by
// their number, ROOT takes the root and LOG the logarithm; with EXP the terms are exp(x - max(x)), and max(x) is added at the end. The
// rows are split by n1 and n2, their elements by m1 and m2. A work-group, or with ITEM a work-item, computes a pair of rows.
#include "common/reduce"

#ifdef FLAT
#define AT(base, c) x_at((base) + (c))
#else
#ifdef ONE
#define AT(base, c) x_at((base) + (c) * p.r0)
#else
#define AT(base, c) x_at((base) + (c) % p.m1 * p.r0 + (c) / p.m1 % p.m2 * p.r1 + (c) / p.m1 / p.m2 * p.r2)
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
#ifdef ABS
  return v < 0 ? -v : v;
#else
#ifdef SQUARE
  return v * v;
#else
#ifdef EXP
  return exp(v - top);
#else
  return v;
#endif
#endif
#endif
}

#ifdef MAXIMUM
#define START LEAST
#define JOIN(a, b) max(a, b)
#else
#ifdef MINIMUM
#define START (-(LEAST + 1))
#define JOIN(a, b) min(a, b)
#else
#ifdef PRODUCT
#define START 1
#define JOIN(a, b) ((a) * (b))
#else
#define START 0
#define JOIN(a, b) ((a) + (b))
#endif
#endif
#endif

#ifdef ITEM
#define FROM 0
#define STEP 1
#define ALL_MAX(v) v
#define ALL(v) v
#else
#define FROM get_local_id(0)
#define STEP WG
#define ALL_MAX(v) wg_max(v, scratch)
#ifdef MAXIMUM
#define ALL(v) wg_max(v, scratch)
#else
#ifdef MINIMUM
#define ALL(v) (-wg_max(-(v), scratch))
#else
#define ALL(v) wg_sum(v, scratch)
#endif
#endif
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
#ifdef EXP
    top = LEAST;
    for (uint c = FROM; c < p.cols; c += STEP) top = max(top, AT(base, c));
    top = ALL_MAX(top);
#endif
    ELEM s = START;
    for (uint c = FROM; c < p.cols; c += STEP) s = JOIN(s, term(AT(base, c), top));
    s = ALL(s);
#ifdef MEAN
    s /= (ELEM)p.cols;
#endif
#ifdef ROOT
    s = sqrt(s);
#endif
#ifdef LOG
    s = log(s) + top;
#endif
    v = h == 0 ? (ELEM2)(s, 0) : (ELEM2)(v.x, s);
  }
#ifndef ITEM
  if (get_local_id(0) == 0)
#endif
  y_put2(pair, v);
}
