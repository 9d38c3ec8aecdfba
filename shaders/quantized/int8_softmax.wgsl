// Softmax of rows of `channels` bytes, with scale 1/256 and zero point -128. The table holds the
// exponential of each difference from the largest element. A work-item computes one row.
fn element(at: u32, c: u32) -> i32 { return i32(x[at + c / 4u] << (24u - c % 4u * 8u)) >> 24u; }

@compute @workgroup_size(WG)
fn int8_softmax(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = id.x;
  if (row >= p.rows) { return; }
  let at = row * p.words;
  var most = -128;
  var sum = 0u;
  for (var c = 0u; c < p.channels; c++) { most = max(most, element(at, c)); }
  for (var c = 0u; c < p.channels; c++) { sum += table[u32(most - element(at, c))]; }
  for (var i = 0u; i < p.words; i++) {
    var v = 0u;
    for (var b = 0u; b < 4u; b++) {
      let c = 4u * i + b;
      var share = 0u;
      if (c < p.channels) { share = (256u * table[u32(most - element(at, c))] + sum / 2u) / sum; }
      v |= ((min(share, 255u) - 128u) & 255u) << (8u * b);
    }
    y[at + i] = v;
  }
}
