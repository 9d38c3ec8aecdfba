// state[at + i] = x[i] with at = live[start], even. A work-item copies two neighbouring elements.
@compute @workgroup_size(WG)
fn kv_append(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair < p.count) { state_put2(u32(live_at(p.start)) / 2u + pair, x_at2(pair)); }
}
