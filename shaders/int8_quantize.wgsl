// Floats [.., channels, inner] as bytes [.., inner, 4 * words]. Thresholds hold the least float of each byte, so that all devices agree: a guess by
// the reciprocal of the scale is off by one at most. A work-item computes one word.
fn quantized(v: f32) -> i32 {
  var q = i32(clamp(round(v * p.inverse), f32(p.low - p.zero), f32(p.high - p.zero))) + p.zero;
  // NaN; its bits are compared, since drivers may assume that there is none.
  if ((bitcast<u32>(v) & 0x7FFFFFFFu) > 0x7F800000u) { return clamp(p.zero, p.low, p.high); }
  if (v < bitcast<f32>(thresholds[u32(q + 128)])) { q--; }
  if (q < 127 && v >= bitcast<f32>(thresholds[u32(min(q, 126) + 129)])) { q++; }
  return q;
}

@compute @workgroup_size(WG)
fn int8_quantize(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let row = i / p.words;
  let from_ = row / p.inner * p.channels * p.inner + row % p.inner;
  var v = 0u;
  for (var b = 0u; b < 4u; b++) {
    let c = 4u * (i % p.words) + b;
    var q = clamp(p.zero, p.low, p.high);
    if (c < p.channels) { q = quantized(x_at(from_ + c * p.inner)); }
    v |= (u32(q) & 255u) << (8u * b);
  }
  y[i] = v;
}
