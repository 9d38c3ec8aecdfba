// y = the position of the largest element along an axis of `cols` elements, `inner` apart: the first of equal ones, or with LAST the
// last; with SMALLEST that of the smallest. A work-item computes two neighbouring results.
#include "common/order"
#ifdef SMALLEST
#define OVER(a, b) ((a) < (b))
#define ODD_ORDER (-2147483647 - 1)
#else
#define OVER(a, b) ((a) > (b))
#define ODD_ORDER 2147483647
#endif

#ifdef FLOATS
// NaN counts as the largest, or the smallest.
#define KEY(v) order_of(v, ODD_ORDER)
#else
#define KEY(v) (v)
#endif

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  int2 v = (int2)(0);
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1), base = i / p.inner * p.cols * p.inner + i % p.inner;
    uint place = 0;
    int best = KEY(x_at(base));
    for (uint c = 1; c < p.cols; c++) {
      int e = KEY(x_at(base + c * p.inner));
#ifdef LAST
      if (!OVER(best, e)) {
#else
      if (OVER(e, best)) {
#endif
        best = e;
        place = c;
      }
    }
    v = h == 0 ? (int2)((int)place, 0) : (int2)(v.x, (int)place);
  }
  y_put2(pair, v);
}
