// Dequantizes bytes [.., inner, stride] to floats [.., channels, inner]. A work-item computes two
// neighbouring results.
fn element(i: u32) -> f32 {
  let c = i / p.inner % p.channels;
  let at = (i / p.inner / p.channels * p.inner + i % p.inner) * p.stride + c;
  return p.scale * f32((i32(x[at / 4u] << (24u - at % 4u * 8u)) >> 24u) - p.zero);
}

@compute @workgroup_size(WG)
fn int8_dequantize(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<f32>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
