// Converts integers [.., channels, inner] to bytes [.., inner, 4 * words], XORed with `flip`. The
// padding holds 0. A work-item computes one word.
@compute @workgroup_size(WG)
fn int8_enter(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let row = i / p.words;
  let from_ = row / p.inner * p.channels * p.inner + row % p.inner;
  var v = 0u;
  for (var b = 0u; b < 4u; b++) {
    let c = 4u * (i % p.words) + b;
    var q = 0u;
    if (c < p.channels) { q = u32(x_at(from_ + c * p.inner)) ^ p.flip; }
    v |= (q & 255u) << (8u * b);
  }
  y[i] = v;
}
