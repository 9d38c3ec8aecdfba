// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes
// ROWS rows (8, 4 with HALF_TILE, 2 with QUARTER_TILE as well) of COLS (4) neighbouring columns. The
// work-group shares a group of x, and each weight is decoded once for all rows. With PARTS, the
// columns up to end0, up to end1 and the rest are separate results, which start at elements 0,
// start1 and start2.
//
// The sums are separate variables, since an array that a compiler does not unroll is kept in
// memory.
#include "common/e0m"
#include "common/parts"
var<workgroup> xs: array<vec4<f32>, ROWS * GROUP / 4u>;

// Weights of four neighbouring rows and four columns. The first row is weight q of the step.
fn four(word: E0mWords, q: u32, scale: vec4<f32>, rest: vec4<f32>) -> mat4x4<f32> {
  return mat4x4<f32>(
    e0m_weight(e0m_levels(word, q), scale, rest),
    e0m_weight(e0m_levels(word, q + 1u), scale, rest),
    e0m_weight(e0m_levels(word, q + 2u), scale, rest),
    e0m_weight(e0m_levels(word, q + 3u), scale, rest),
  );
}

fn put(row: u32, at: u32, v: vec4<f32>) {
  let c = p.column + at;
  if (row < p.m && at < p.n) { y_put2(result_at(row, c, p.y_stride) / 2u, v.xy); }
  if (row < p.m && at + 2u < p.n) { y_put2(result_at(row, c + 2u, p.y_stride) / 2u, v.zw); }
}

@compute @workgroup_size(WG)
fn matmul_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i0 = group.y * ROWS;
  let column = (group.x * WG + lid) * COLS;
  let j = select(0u, column, column < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * e0m_rows(p.k / PER) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(p.k) * panel + j % p.panel / 4u;
  var t0 = vec4<f32>();
  var t1 = vec4<f32>();
#ifndef QUARTER_TILE
  var t2 = vec4<f32>();
  var t3 = vec4<f32>();
#endif
#ifndef HALF_TILE
  var t4 = vec4<f32>();
  var t5 = vec4<f32>();
  var t6 = vec4<f32>();
  var t7 = vec4<f32>();
#endif
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
#ifdef NESTED
    let s = e0m_decode(e0m_nested(pair_at, g / SPAN, panel, p.k));
    let rest = s.rest;
#else
    let s = e0m_scales(scales[pair_at + g / SPAN * panel]);
    let rest = -s.scale * s.bias;
#endif
    for (var c = 0u; c < len; c += PER) {
      let word = e0m_words(word_at, (k0 + c) / PER, panel);
      // Four weights at a time, since all weights of a step would need as many registers as the
      // sums.
      for (var q = 0u; q < PER; q += 4u) {
        let w = four(word, q, s.scale, rest);
        let at = (c + q) / 4u;
        t0 += w * xs[at];
        t1 += w * xs[at + GROUP / 4u];
#ifndef QUARTER_TILE
        t2 += w * xs[at + 2u * (GROUP / 4u)];
        t3 += w * xs[at + 3u * (GROUP / 4u)];
#endif
#ifndef HALF_TILE
        t4 += w * xs[at + 4u * (GROUP / 4u)];
        t5 += w * xs[at + 5u * (GROUP / 4u)];
        t6 += w * xs[at + 6u * (GROUP / 4u)];
        t7 += w * xs[at + 7u * (GROUP / 4u)];
#endif
      }
    }
    workgroupBarrier();
    g++;
  }
  put(i0, column, t0);
  put(i0 + 1u, column, t1);
#ifndef QUARTER_TILE
  put(i0 + 2u, column, t2);
  put(i0 + 3u, column, t3);
#endif
#ifndef HALF_TILE
  put(i0 + 4u, column, t4);
  put(i0 + 5u, column, t5);
  put(i0 + 6u, column, t6);
  put(i0 + 7u, column, t7);
#endif
}
