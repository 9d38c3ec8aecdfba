// y = x[i] at the position to which an index points, if that is inside y; other elements are kept.
// A work-item writes one element.
#include "common/places"

KERNEL {
  uint i = get_global_id(0), at;
  if (i >= p.count) return;
  if (PLACE(i, &at)) y_put(at, x_at(i));
}
