// Applies the rotary embedding to queries and new keys, and appends the keys and the new values to
// their states. A work-item computes two neighbouring elements: of queries first, then of keys,
// then of values.
//
// Angles belong to rows. With NEIGHBOURS, two neighbouring elements form a pair that is rotated by
// an angle, and the elements after the last angle are copied. New rows are written from live[start]
// on, which is even. With HAS_PLACES, each is written to its place, or not at all if that is
// negative.
#ifdef NEIGHBOURS
fn turn(v: vec2<f32>, j: u32, angle: u32) -> vec2<f32> {
  if (j >= 2u * p.angles) { return v; }
  let c = cosine_at(angle + j / 2u);
  let s = sine_at(angle + j / 2u);
  return vec2<f32>(v.x * c - v.y * s, v.y * c + v.x * s);
}

fn turned_query(i: u32, angle: u32) -> vec2<f32> { return turn(q_at2(i / 2u), i % p.dim, angle); }

fn turned_key(i: u32, angle: u32) -> vec2<f32> { return turn(k_at2(i / 2u), i % p.dim, angle); }
#else
fn one_query(i: u32, angle: u32) -> f32 {
  let j = i % p.dim;
  var other: f32;
  if (j < p.dim / 2u) { other = -q_at(i + p.dim / 2u); } else { other = q_at(i - p.dim / 2u); }
  return q_at(i) * cosine_at(angle + j) + other * sine_at(angle + j);
}

fn one_key(i: u32, angle: u32) -> f32 {
  let j = i % p.dim;
  var other: f32;
  if (j < p.dim / 2u) { other = -k_at(i + p.dim / 2u); } else { other = k_at(i - p.dim / 2u); }
  return k_at(i) * cosine_at(angle + j) + other * sine_at(angle + j);
}

fn turned_query(i: u32, angle: u32) -> vec2<f32> { return vec2<f32>(one_query(i, angle), one_query(i + 1u, angle)); }

fn turned_key(i: u32, angle: u32) -> vec2<f32> { return vec2<f32>(one_key(i, angle), one_key(i + 1u, angle)); }
#endif

@compute @workgroup_size(WG)
fn rotary_append(@builtin(global_invocation_id) id: vec3<u32>) {
  var i = 2u * id.x;
  if (i < p.queries) {
    let angle = i / p.dim / p.heads * p.angles;
    y_put2(i / 2u, turned_query(i, angle));
    return;
  }
  i -= p.queries;
  if (i >= 2u * p.count) { return; }
  let at = select(i - p.count, i, i < p.count);
#ifdef HAS_PLACES
  let row = p.kv_heads * p.dim;
  let place = places_at(at / row);
  if (place < 0) { return; }
  let to = u32(place) * row + at % row;
#else
  let to = u32(live_at(p.start)) + at;
#endif
  if (i < p.count) {
    let angle = i / p.dim / p.kv_heads * p.angles;
    keys_put2(to / 2u, turned_key(i, angle));
  } else {
    values_put2(to / 2u, v_at2(at / 2u));
  }
}
