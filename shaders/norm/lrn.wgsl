// y = x / (bias + factor * sum(x^2))^beta, where the sum is over the channels from `before`
// channels before the element's own to `after` channels after it. A work-item computes two
// neighbouring results.
fn element(i: u32) -> f32 {
  let c = i / p.plane % p.channels;
  let first = min(c, p.before);
  let last = min(p.channels - 1u - c, p.after);
  var s = 0.0;
  for (var j = 0u; j <= first + last; j++) {
    let e = x_at(i + j * p.plane - first * p.plane);
    s += e * e;
  }
  return x_at(i) / pow(p.bias + p.factor * s, p.beta);
}

@compute @workgroup_size(WG)
fn lrn(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<f32>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
