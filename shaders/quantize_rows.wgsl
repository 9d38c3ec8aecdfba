// Rows of x become signed bytes, four to a word of y, in blocks of BLOCK places, of which the last of a row may be shorter: x / a to the nearest,
// ties to even, where a is the largest magnitude of the block / 127. `factors` takes, of each block, a and a times the sum of its bytes.
// The bytes stand as the codes of an E0M weight do (common/e0m): of eight places 0 4 1 5 and 2 6 3 7 in the bytes of a word, with PER4 of
// four places 0 2 1 3. A work-item makes a block.
fn word(c0: i32, c1: i32, c2: i32, c3: i32) -> u32 {
  let c = vec4<u32>(vec4<i32>(c0, c1, c2, c3) & vec4<i32>(255)) << vec4<u32>(0u, 8u, 16u, 24u);
  return c.x | c.y | c.z | c.w;
}

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
    y[at + i] = word(c.x, c.z, c.y, c.w);
  }
#else
  for (var i = 0u; i < quads; i += 2u) {
    let c = vec4<i32>(round(x_at4(at + i) * inverse));
    let d = vec4<i32>(round(x_at4(at + i + 1u) * inverse));
    sums += c + d;
    y[at + i] = word(c.x, d.x, c.y, d.y);
    y[at + i + 1u] = word(c.z, d.z, c.w, d.w);
  }
#endif
  let scale = most / 127.0;
  factors[2u * id.x] = bitcast<u32>(scale);
  factors[2u * id.x + 1u] = bitcast<u32>(scale * f32(sums.x + sums.y + sums.z + sums.w));
}
