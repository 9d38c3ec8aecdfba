// y = x[i] at the position to which an index points, if that is inside y; other elements are kept.
// A work-item writes one element.
#include "common/places"

@compute @workgroup_size(WG)
fn scatter(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let place = place_of(i);
  if (place.inside) { y_put(place.at, x_at(i)); }
}
