// Joins rows of a_len and b_len elements. A work-item writes two neighbouring results.
fn element(i: u32) -> ELEM {
  let row = i / (p.a_len + p.b_len);
  let at = i % (p.a_len + p.b_len);
  if (at < p.a_len) { return a_at(row * p.a_len + at); }
  return b_at(row * p.b_len + at - p.a_len);
}

@compute @workgroup_size(WG)
fn concat(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
