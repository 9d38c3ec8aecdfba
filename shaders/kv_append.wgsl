// state[at + i] = x[i] with at = live[start], even; behind RING elements, if so many are kept, from the start again. A work-item copies two
// neighbouring elements.
@compute @workgroup_size(WG)
fn kv_append(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  var at = u32(live_at(p.start)) / 2u + pair;
#ifdef RING
  at %= RING / 2u;
#endif
  if (2u * pair < p.count) { state_put2(at, x_at2(pair)); }
}
