// Quantizes floats [.., channels, inner] to bytes [.., inner, 4 * words]. `thresholds` holds the
// smallest float of each byte. A work-item computes one word.
#include "common/int8"

fn quantized(v: f32) -> i32 {
  let q = guess(v, p.inverse, p.zero, p.low, p.high);
  return settled(v, q, thresholds[least_of(q)], thresholds[next_of(q)]);
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
