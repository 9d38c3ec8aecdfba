// y[i] = live[start] + i * delta. A work-item writes two neighbouring results.
@compute @workgroup_size(WG)
fn range(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  let first = live_at(p.start) + i32(2u * pair) * p.delta;
  y_put2(pair, vec2<ELEM>(ELEM(first), ELEM(first + p.delta)));
}
