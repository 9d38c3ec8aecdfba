// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes ROWS rows of COLS neighbouring
// columns; a group of x is shared by the work-group, and each weight is unpacked once for all rows.
#include "common/e0m4"
const QUADS: u32 = COLS / 4u;
var<workgroup> xs: array<vec4<f32>, ROWS * GROUP / 4u>;

@compute @workgroup_size(WG)
fn matmul_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = group.x * (WG * COLS);
  let i0 = group.y * ROWS;
  let column = first + lid * COLS;
  let j = select(0u, column, column < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * (p.k / PER) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * ((p.k + GROUP - 1u) / GROUP) * panel + j % p.panel / 4u;
  var total: array<array<vec4<f32>, QUADS>, ROWS>;
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
    for (var q = 0u; q < QUADS; q++) {
      let s = e0m_scales(scales[pair_at + g * panel + q]);
      let offset = s.scale * s.bias;
      for (var c = 0u; c < len; c += PER) {
        let word = codes[word_at + (k0 + c) / PER * panel + q];
        let w0 = e0m_levels(word, 0u) * s.scale - offset;
        let w1 = e0m_levels(word, 1u) * s.scale - offset;
        let w2 = e0m_levels(word, 2u) * s.scale - offset;
        let w3 = e0m_levels(word, 3u) * s.scale - offset;
#ifndef PER4
        let w4 = e0m_levels(word, 4u) * s.scale - offset;
        let w5 = e0m_levels(word, 5u) * s.scale - offset;
        let w6 = e0m_levels(word, 6u) * s.scale - offset;
        let w7 = e0m_levels(word, 7u) * s.scale - offset;
#endif
        for (var r = 0u; r < ROWS; r++) {
          let a = xs[(r * GROUP + c) / 4u];
          var t = a.x * w0 + a.y * w1 + a.z * w2 + a.w * w3;
#ifndef PER4
          let b = xs[(r * GROUP + c) / 4u + 1u];
          t += b.x * w4 + b.y * w5 + b.z * w6 + b.w * w7;
#endif
          total[r][q] += t;
        }
      }
    }
    workgroupBarrier();
    g++;
  }
  for (var r = 0u; r < ROWS; r++) {
    for (var q = 0u; q < QUADS; q++) {
      let at = column + 4u * q;
      let to = ((i0 + r) * p.y_stride + p.column + at) / 2u;
      if (i0 + r < p.m && at < p.n) { y_put2(to, total[r][q].xy); }
      if (i0 + r < p.m && at + 2u < p.n) { y_put2(to + 1u, total[r][q].zw); }
    }
  }
}
