// y[i] = the element of x to which an index points, or 0 if that is outside x. A work-item writes
// two neighbouring results.
#include "common/places"

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1), at;
    bool inside = PLACE(i, &at);
    v[h] = inside ? x_at(at) : 0;
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
