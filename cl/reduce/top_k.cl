// The `kept` largest, or smallest, elements of lines of n elements that are `inner` apart, in
// order, with their positions. Of equal elements, the first comes first. A work-item determines the
// rank of one element, by comparing it with all of its line, and stores it at that position.
#include "common/order"
#ifdef FLOATS
// NaN counts as larger than any number.
#define KEY(v) order_of(v, 2147483647)
#else
#define KEY(v) (v)
#endif

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint own = i / p.inner % p.n, outer = i / p.inner / p.n, inside = i % p.inner;
  uint base = outer * p.n * p.inner + inside, place = 0;
  ELEM v = x_at(i);
  int key = KEY(v);
  for (uint j = 0; j < p.n; j++) {
    int o = KEY(x_at(base + j * p.inner));
#ifdef LARGEST
    bool before = o > key;
#else
    bool before = o < key;
#endif
    place += before || (o == key && j < own) ? 1 : 0;
  }
  if (place >= p.kept) return;
  uint to = (outer * p.kept + place) * p.inner + inside;
  y_put(to, v);
  at_put(to, (int)own);
}
