// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results. A work-item
// computes ROWS rows by two neighbouring columns; with ODD (an odd n), two neighbouring results in
// memory, in any columns. With ROUNDS, it continues with the batch that is the grid's length
// further on, until there is none.
#ifndef BY4
fn b_of(b0: u32, k: u32, j: u32) -> f32 {
#ifdef TRANS_B
  return b_at(b0 + j * p.b_stride + k);
#else
  return b_at(b0 + k * p.b_stride + j);
#endif
}
#endif

#include "common/batches"

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(global_invocation_id) id: vec3<u32>) {
#ifdef ODD
  let pair = id.x;
  let total = p.batches * p.m * p.n;
  if (2u * pair >= total) { return; }
  var sum = vec2<f32>();
  for (var h = 0u; h < 2u; h++) {
    let at = min(2u * pair + h, total - 1u);
    let z = at / (p.m * p.n);
    let i = at / p.n % p.m;
    let j = at % p.n;
    let a0 = a_start(z) + i * p.k;
    let b0 = b_start(z);
    var s = 0.0;
    for (var k = 0u; k < p.k; k++) { s += a_at(a0 + k) * b_of(b0, k, j); }
    if (h == 0u) { sum.x = s; } else { sum.y = s; }
  }
  y_put2(pair, sum);
#else
  let j = 2u * id.x;
  let i0 = group.y * ROWS;
  if (j >= p.n) { return; }
#ifdef ROUNDS
  for (var z = group.z; z < p.batches; z += grid.z)
#else
  let z = group.z;
#endif
  {
    let a0 = a_start(z);
    let b0 = b_start(z);
    var sum: array<vec2<f32>, ROWS>;
    var row: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r++) { row[r] = a0 + min(i0 + r, p.m - 1u) * p.k; }
#ifdef BY4
    // Four terms of the sum at a time, so that their loads do not wait for each other.
    for (var k = 0u; k < p.k; k += 4u) {
#ifdef TRANS_B
      let c0 = b_at4((b0 + j * p.b_stride + k) / 4u);
      let c1 = b_at4((b0 + (j + 1u) * p.b_stride + k) / 4u);
      for (var r = 0u; r < ROWS; r++) {
        let x = a_at4((row[r] + k) / 4u);
        sum[r] += vec2<f32>(dot(x, c0), dot(x, c1));
      }
#else
      let at = b0 + k * p.b_stride + j;
      let w0 = b_at2(at / 2u);
      let w1 = b_at2((at + p.b_stride) / 2u);
      let w2 = b_at2((at + 2u * p.b_stride) / 2u);
      let w3 = b_at2((at + 3u * p.b_stride) / 2u);
      for (var r = 0u; r < ROWS; r++) {
        let x = a_at4((row[r] + k) / 4u);
        sum[r] += x.x * w0 + x.y * w1 + x.z * w2 + x.w * w3;
      }
#endif
    }
#else
    for (var k = 0u; k < p.k; k++) {
#ifdef TRANS_B
      let w = vec2<f32>(b_of(b0, k, j), b_of(b0, k, j + 1u));
#else
      let w = b_at2((b0 + k * p.b_stride + j) / 2u);
#endif
      for (var r = 0u; r < ROWS; r++) { sum[r] += a_at(row[r] + k) * w; }
    }
#endif
    for (var r = 0u; r < ROWS; r++) {
      if (i0 + r < p.m) { y_put2(((z * p.m + i0 + r) * p.y_stride + p.column + j) / 2u, sum[r]); }
    }
  }
#endif
}
