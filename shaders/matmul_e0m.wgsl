// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes ROWS rows of one column; a
// group of x is shared by the work-group, and each weight is unpacked once for all rows.
#include "common/e0m4"
var<workgroup> xs: array<vec4<f32>, ROWS * GROUP / 4u>;
var<workgroup> out: array<f32, ROWS * WG>;

@compute @workgroup_size(WG)
fn matmul_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = group.x * WG;
  let i0 = group.y * ROWS;
  let j = min(first + lid, p.n - 1u);
  var total: array<f32, ROWS>;
  var g = 0u;
  for (var k0 = 0u; k0 < p.k; k0 += GROUP) {
    let len = min(GROUP, p.k - k0);
    for (var t = lid; t < ROWS * GROUP / 4u; t += WG) {
      let r = t / (GROUP / 4u);
      let c = 4u * (t % (GROUP / 4u));
      var v = vec4<f32>();
      if (i0 + r < p.m && c < len) { v = x_at4(((i0 + r) * p.k + k0 + c) / 4u); }
      xs[t] = v;
    }
    workgroupBarrier();
    let s = scales_at2(g * p.stride + j);
    let offset = -s.x * s.y;
    for (var c = 0u; c < len; c += PER) {
      let word = codes[(k0 + c) / PER * p.stride + j];
      let a = vec4<f32>(e0m_pair(word, 0u), e0m_pair(word, 1u)) * s.x + offset;
#ifndef PER4
      let b = vec4<f32>(e0m_pair(word, 2u), e0m_pair(word, 3u)) * s.x + offset;
#endif
      for (var r = 0u; r < ROWS; r++) {
        let at = (r * GROUP + c) / 4u;
#ifdef PER4
        total[r] += dot(a, xs[at]);
#else
        total[r] += dot(a, xs[at]) + dot(b, xs[at + 1u]);
#endif
      }
    }
    workgroupBarrier();
    g++;
  }
  for (var r = 0u; r < ROWS; r++) { out[r * WG + lid] = total[r]; }
  workgroupBarrier();
  for (var t = lid; t < ROWS * WG / 2u; t += WG) {
    let r = t / (WG / 2u);
    let c = 2u * (t % (WG / 2u));
    if (i0 + r < p.m && first + c < p.n) {
      y_put2(((i0 + r) * p.y_stride + p.column + first + c) / 2u, vec2<f32>(out[2u * t], out[2u * t + 1u]));
    }
  }
}
