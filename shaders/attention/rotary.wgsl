// y = x * cos + rotate_half(x) * sin for rows of dim elements; heads neighbouring rows have the
// same angles. A work-item computes two neighbouring results. With NEIGHBOURS, two neighbouring
// elements form a pair that is rotated by an angle, and the elements after the last angle are
// copied.
fn element(i: u32) -> f32 {
  let j = i % p.dim;
  let angle = i / p.dim / p.heads * p.angles + j;
  var other = 0.0;
  if (j < p.dim / 2u) { other = -x_at(i + p.dim / 2u); } else { other = x_at(i - p.dim / 2u); }
  return x_at(i) * cosine_at(angle) + other * sine_at(angle);
}

@compute @workgroup_size(WG)
fn rotary(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
#ifdef NEIGHBOURS
  let j = pair % (p.dim / 2u);
  let angle = pair / (p.dim / 2u) / p.heads * p.angles + j;
  var v = vec2<f32>(x_at(2u * pair), x_at(2u * pair + 1u));
  if (j < p.angles) {
    let c = cosine_at(angle);
    let s = sine_at(angle);
    v = vec2<f32>(v.x * c - v.y * s, v.y * c + v.x * s);
  }
  y_put2(pair, v);
#else
  y_put2(pair, vec2<f32>(element(2u * pair), element(2u * pair + 1u)));
#endif
}
