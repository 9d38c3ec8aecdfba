// y[i] = the element of x to which an index points, or 0 if that is outside x. A work-item writes
// two neighbouring results.
#include "common/places"

fn element(i: u32) -> ELEM {
  let place = place_of(i);
  if (place.inside) { return x_at(place.at); }
  return ELEM(0);
}

@compute @workgroup_size(WG)
fn gather_places(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
