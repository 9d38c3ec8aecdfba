// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results. A work-item computes ROWS rows by
// two neighbouring columns; with ODD (an odd n), two neighbouring results in memory, wherever they lie. With ROUNDS it goes on with the
// batch that lies the grid's length behind, until there is none.
// With BROADCAST a work-item computes ROWS (8, or 16 with TALL) rows of eight columns, and loads one row (two) for all lanes of its sub-group. The
// sums are variables of their own: an array that a compiler does not unroll lives in memory.
#ifndef BROADCAST
#ifndef BY4
fn b_of(b0: u32, k: u32, j: u32) -> f32 {
#ifdef TRANS_B
  return b_at(b0 + j * p.b_stride + k);
#else
  return b_at(b0 + k * p.b_stride + j);
#endif
}
#endif
#endif

#include "common/batches"

#ifdef BROADCAST
// Four places of the sum of four columns from `at` on, in fours: a column of the matrix is a place.
fn block(at: u32, step: u32) -> mat4x4<f32> {
#ifdef TRANS_B
  return transpose(mat4x4<f32>(b_at4(at), b_at4(at + step), b_at4(at + 2u * step), b_at4(at + 3u * step)));
#else
  return mat4x4<f32>(b_at4(at), b_at4(at + step), b_at4(at + 2u * step), b_at4(at + 3u * step));
#endif
}

// Of four places the terms of eight columns.
fn terms(left: mat4x4<f32>, right: mat4x4<f32>, x: vec4<f32>) -> mat2x4<f32> { return mat2x4<f32>(left * x, right * x); }

fn put(z: u32, i: u32, j: u32, sum: mat2x4<f32>) {
  if (i >= p.m) { return; }
  let at = (z * p.m + i) * p.y_stride + p.column + j;
  if (j < p.n) { y_put2(at / 2u, sum[0].xy); }
  if (j + 2u < p.n) { y_put2(at / 2u + 1u, sum[0].zw); }
  if (j + 4u < p.n) { y_put2(at / 2u + 2u, sum[1].xy); }
  if (j + 6u < p.n) { y_put2(at / 2u + 3u, sum[1].zw); }
}

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, @builtin(local_invocation_index) lid: u32,
    @builtin(subgroup_invocation_id) lane: u32) {
  let i0 = group.y * ROWS;
  let column = 8u * (group.x * WG + lid);
  // All lanes go on, as others need their rows.
  let j = select(0u, column, column < p.n);
#ifdef TRANS_B
  let step = p.b_stride / 4u;
  let left = j * step;
  // What lies behind the last column is that one again, or four of them.
  let right = min(j + 4u, p.n - 4u) * step;
  let each = 1u;
#else
  let step = p.b_stride / 4u;
  let left = j / p.b_stride * (p.k * step) + j % p.b_stride / 4u;
  let right = j / p.b_stride * (p.k * step) + min(j % p.b_stride / 4u + 1u, step - 1u);
  let each = p.b_stride;
#endif
#ifdef ROUNDS
  for (var z = group.z; z < p.batches; z += grid.z)
#else
  let z = group.z;
#endif
  {
    let b0 = b_start(z) / 4u;
    let row = (a_start(z) + min(i0 + lane % 8u, p.m - 1u) * p.k) / 4u;
#ifdef TALL
    let row8 = (a_start(z) + min(i0 + 8u + lane % 8u, p.m - 1u) * p.k) / 4u;
#endif
    var s0 = mat2x4<f32>();
    var s1 = mat2x4<f32>();
    var s2 = mat2x4<f32>();
    var s3 = mat2x4<f32>();
    var s4 = mat2x4<f32>();
    var s5 = mat2x4<f32>();
    var s6 = mat2x4<f32>();
    var s7 = mat2x4<f32>();
#ifdef TALL
    var s8 = mat2x4<f32>();
    var s9 = mat2x4<f32>();
    var s10 = mat2x4<f32>();
    var s11 = mat2x4<f32>();
    var s12 = mat2x4<f32>();
    var s13 = mat2x4<f32>();
    var s14 = mat2x4<f32>();
    var s15 = mat2x4<f32>();
#endif
    for (var k = 0u; k < p.k / 4u; k++) {
      let l = block(b0 + left + k * each, step);
      let r = block(b0 + right + k * each, step);
      let x = a_at4(row + k);
      s0 += terms(l, r, subgroupBroadcast(x, 0u));
      s1 += terms(l, r, subgroupBroadcast(x, 1u));
      s2 += terms(l, r, subgroupBroadcast(x, 2u));
      s3 += terms(l, r, subgroupBroadcast(x, 3u));
      s4 += terms(l, r, subgroupBroadcast(x, 4u));
      s5 += terms(l, r, subgroupBroadcast(x, 5u));
      s6 += terms(l, r, subgroupBroadcast(x, 6u));
      s7 += terms(l, r, subgroupBroadcast(x, 7u));
#ifdef TALL
      let v = a_at4(row8 + k);
      s8 += terms(l, r, subgroupBroadcast(v, 0u));
      s9 += terms(l, r, subgroupBroadcast(v, 1u));
      s10 += terms(l, r, subgroupBroadcast(v, 2u));
      s11 += terms(l, r, subgroupBroadcast(v, 3u));
      s12 += terms(l, r, subgroupBroadcast(v, 4u));
      s13 += terms(l, r, subgroupBroadcast(v, 5u));
      s14 += terms(l, r, subgroupBroadcast(v, 6u));
      s15 += terms(l, r, subgroupBroadcast(v, 7u));
#endif
    }
    put(z, i0, column, s0);
    put(z, i0 + 1u, column, s1);
    put(z, i0 + 2u, column, s2);
    put(z, i0 + 3u, column, s3);
    put(z, i0 + 4u, column, s4);
    put(z, i0 + 5u, column, s5);
    put(z, i0 + 6u, column, s6);
    put(z, i0 + 7u, column, s7);
#ifdef TALL
    put(z, i0 + 8u, column, s8);
    put(z, i0 + 9u, column, s9);
    put(z, i0 + 10u, column, s10);
    put(z, i0 + 11u, column, s11);
    put(z, i0 + 12u, column, s12);
    put(z, i0 + 13u, column, s13);
    put(z, i0 + 14u, column, s14);
    put(z, i0 + 15u, column, s15);
#endif
  }
}
#else
@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
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
    // Four places of the sum at a time: their loads do not wait for each other.
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
#endif
