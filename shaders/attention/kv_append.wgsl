// state[at + i] = x[i] with at = live[start], which is even. If the state keeps only RING elements,
// positions are taken modulo RING. With HAS_PLACES, a row of x is written to the row of the state
// that `places` contains, or to none if that is negative. A work-item copies two neighbouring
// elements.
@compute @workgroup_size(WG)
fn kv_append(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
#ifdef HAS_PLACES
  if (2u * pair >= p.count) { return; }
  let half_row = p.row / 2u;
  let place = places_at(pair / half_row);
  if (place >= 0) { state_put2(u32(place) * half_row + pair % half_row, x_at2(pair)); }
#else
  var at = u32(live_at(p.start)) / 2u + pair;
#ifdef RING
  at %= RING / 2u;
#endif
  if (2u * pair < p.count) { state_put2(at, x_at2(pair)); }
#endif
}
