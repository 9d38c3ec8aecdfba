// y = x * cos + rotate_half(x) * sin over rows of dim elements; heads neighbouring rows share an angle. A work-item computes two
// neighbouring results.
fn element(i: u32) -> f32 {
  let j = i % p.dim;
  let angle = i / p.dim / p.heads * p.dim + j;
  var other = 0.0;
  if (j < p.dim / 2u) { other = -x_at(i + p.dim / 2u); } else { other = x_at(i - p.dim / 2u); }
  return x_at(i) * cosine_at(angle) + other * sine_at(angle);
}

@compute @workgroup_size(WG)
fn rotary(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<f32>(element(2u * pair), element(2u * pair + 1u)));
}
