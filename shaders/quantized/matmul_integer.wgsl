// y[z, i, j] = sum_k (a[z, i, k] - za[i]) * (b[z, k, j] - zb[j]) in 32-bit integers, for batches z
// of m x n results. With HAS_W, b is stored as words of the bytes of four columns. A work-item
// computes two neighbouring results; with HAS_W, ROWS rows by four columns.
fn left_zero(i: u32) -> i32 {
#ifdef HAS_ZA
  return za_at(i * p.za_step);
#else
  return 0;
#endif
}

fn right_zero(j: u32) -> i32 {
#ifdef HAS_ZB
  return zb_at(j * p.zb_step);
#else
  return 0;
#endif
}

#ifdef HAS_W
fn bytes(word: u32) -> vec4<i32> {
#ifdef SIGNED
  return vec4<i32>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
#else
  return vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
#endif
}
#else
#include "common/batches"

fn element(at: u32) -> i32 {
  let z = at / (p.m * p.n);
  let i = at / p.n % p.m;
  let j = at % p.n;
  let a0 = a_start(z) + i * p.k;
  let b0 = b_start(z) + j;
  let za = left_zero(i);
  let zb = right_zero(j);
  var sum = 0;
  for (var k = 0u; k < p.k; k++) { sum += (a_at(a0 + k) - za) * (b_at(b0 + k * p.n) - zb); }
  return sum;
}
#endif

@compute @workgroup_size(WG)
fn matmul_integer(@builtin(workgroup_id) group: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
#ifdef HAS_W
  let j = 4u * id.x;
  let i0 = group.y * ROWS;
  if (j >= p.n) { return; }
  let zero = vec4<i32>(right_zero(j), right_zero(j + 1u), right_zero(j + 2u), right_zero(j + 3u));
  var sum: array<vec4<i32>, ROWS>;
  var za: array<i32, ROWS>;
  var row: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    let i = min(i0 + r, p.m - 1u);
    row[r] = i * p.k;
    za[r] = left_zero(i);
  }
  for (var k = 0u; k < p.k; k++) {
    let right = bytes(w[(k * p.n + j) / 4u]) - zero;
    for (var r = 0u; r < ROWS; r++) { sum[r] += (a_at(row[r] + k) - za[r]) * right; }
  }
  for (var r = 0u; r < ROWS; r++) {
    if (i0 + r < p.m) { y_put4(((i0 + r) * p.n + j) / 4u, sum[r]); }
  }
#else
  let pair = id.x;
  let total = p.batches * p.m * p.n;
  if (2u * pair >= total) { return; }
  y_put2(pair, vec2<i32>(element(2u * pair), element(min(2u * pair + 1u, total - 1u))));
#endif
}
