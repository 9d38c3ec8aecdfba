// y = the position of the largest element along an axis of `cols` elements, which are `inner`
// apart. Of equal elements, the first counts, or with LAST the last. With SMALLEST, y is the
// position of the smallest element. A work-item computes two neighbouring results.
#include "common/order"
#ifdef SMALLEST
#define IS_BETTER(a, b) ((a) < (b))
#define NOT_ORDERED (-2147483647 - 1)
#else
#define IS_BETTER(a, b) ((a) > (b))
#define NOT_ORDERED 2147483647
#endif

#ifdef FLOATS
// NaN counts as the largest, or the smallest.
#define KEY(v) order_of(v, NOT_ORDERED)
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
      if (!IS_BETTER(best, e)) {
#else
      if (IS_BETTER(e, best)) {
#endif
        best = e;
        place = c;
      }
    }
    v = h == 0 ? (int2)((int)place, 0) : (int2)(v.x, (int)place);
  }
  y_put2(pair, v);
}
