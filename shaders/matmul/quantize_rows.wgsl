// Quantizes rows of x to signed bytes, words of y, in blocks of BLOCK elements; the last block of a
// row may be shorter. `factors` gets two numbers for each block: the factor of its bytes, and that
// factor times their sum. A work-item computes a block.
#include "common/bytes"

@compute @workgroup_size(WG)
fn quantize_rows(@builtin(global_invocation_id) id: vec3<u32>) {
  let blocks = (p.k + BLOCK - 1u) / BLOCK;
  if (id.x >= p.rows * blocks) { return; }
  let first = id.x % blocks * BLOCK;
  let at = (id.x / blocks * p.k + first) / 4u;
  let quads = min(BLOCK, p.k - first) / 4u;
  var high = vec4<f32>();
  for (var i = 0u; i < quads; i++) { high = max(high, abs(x_at4(at + i))); }
  let most = max(max(high.x, high.y), max(high.z, high.w));
  let inverse = select(0.0, 127.0 / most, most > 0.0);
  var sums = vec4<i32>();
#ifdef PER4
  for (var i = 0u; i < quads; i++) {
    let c = vec4<i32>(round(x_at4(at + i) * inverse));
    sums += c;
    y[at + i] = bytes_word(c.x, c.z, c.y, c.w);
  }
#else
  for (var i = 0u; i < quads; i += 2u) {
    let c = vec4<i32>(round(x_at4(at + i) * inverse));
    let d = vec4<i32>(round(x_at4(at + i + 1u) * inverse));
    sums += c + d;
    y[at + i] = bytes_word(c.x, d.x, c.y, d.y);
    y[at + i + 1u] = bytes_word(c.z, d.z, c.w, d.w);
  }
#endif
  let scale = most / 127.0;
  factors[2u * id.x] = bitcast<u32>(scale);
  factors[2u * id.x + 1u] = bitcast<u32>(scale * f32(sums.x + sums.y + sums.z + sums.w));
}
