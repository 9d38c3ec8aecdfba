// The rotary embedding of queries and of new keys, and what an append does with these and with new values, at once. A work-item takes two
// neighbours: of queries first, then of keys, then of values. Angles belong to rows; new rows go to `at` = live[start], even.
fn turned_query(i: u32, angle: u32) -> f32 {
  let j = i % p.dim;
  var other: f32;
  if (j < p.dim / 2u) { other = -q_at(i + p.dim / 2u); } else { other = q_at(i - p.dim / 2u); }
  return q_at(i) * cosine_at(angle + j) + other * sine_at(angle + j);
}

fn turned_key(i: u32, angle: u32) -> f32 {
  let j = i % p.dim;
  var other: f32;
  if (j < p.dim / 2u) { other = -k_at(i + p.dim / 2u); } else { other = k_at(i - p.dim / 2u); }
  return k_at(i) * cosine_at(angle + j) + other * sine_at(angle + j);
}

@compute @workgroup_size(WG)
fn rotary_append(@builtin(global_invocation_id) id: vec3<u32>) {
  var i = 2u * id.x;
  if (i < p.queries) {
    let angle = i / p.dim / p.heads * p.dim;
    y_put2(i / 2u, vec2<f32>(turned_query(i, angle), turned_query(i + 1u, angle)));
    return;
  }
  i -= p.queries;
  let to = u32(live_at(p.start));
  if (i < p.count) {
    let angle = i / p.dim / p.kv_heads * p.dim;
    keys_put2((to + i) / 2u, vec2<f32>(turned_key(i, angle), turned_key(i + 1u, angle)));
    return;
  }
  i -= p.count;
  if (i < p.count) { values_put2((to + i) / 2u, v_at2(i / 2u)); }
}
