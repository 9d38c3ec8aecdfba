// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-item takes COLS neighbouring columns, LANES of them
// lie side by side in a work-group, and WG / LANES share a column block, each taking every so many groups of weights.
//
// With w = s * (w1 - b): sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing a weight.
#include "common/e0m4"
const SLICES: u32 = WG / LANES;
const QUADS: u32 = COLS / 4u;
var<workgroup> part: array<vec4<f32>, WG * QUADS>;

@compute @workgroup_size(WG)
fn matvec_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % LANES;
  let first = group.x * (LANES * COLS);
  let j = select(0u, first + lane * COLS, first + lane * COLS < p.n);
  let panel = p.panel / 4u;
  var total: array<vec4<f32>, QUADS>;
  let groups = (p.steps + GROUP / PER - 1u) / (GROUP / PER);
  let word_at = j / p.panel * e0m_rows(p.steps) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_groups(p.steps * PER) * panel + j % p.panel / 4u;
  for (var g = lid / LANES; g < groups; g += SLICES) {
    var dots: array<vec4<f32>, QUADS>;
    var sum = 0.0;
    let end = min((g + 1u) * (GROUP / PER), p.steps);
    for (var r = g * (GROUP / PER); r < end; r++) {
#ifdef PER4
      let a = x_at4(r);
      sum += dot(a, vec4<f32>(1.0));
#else
      let a = x_at4(2u * r);
      let b = x_at4(2u * r + 1u);
      sum += dot(a + b, vec4<f32>(1.0));
#endif
      for (var q = 0u; q < QUADS; q++) {
        let word = e0m_words(word_at + q, r, panel);
        var d = dots[q];
        d += a.x * e0m_levels(word, 0u) + a.y * e0m_levels(word, 1u) + a.z * e0m_levels(word, 2u) + a.w * e0m_levels(word, 3u);
#ifndef PER4
        d += b.x * e0m_levels(word, 4u) + b.y * e0m_levels(word, 5u) + b.z * e0m_levels(word, 6u) + b.w * e0m_levels(word, 7u);
#endif
        dots[q] = d;
      }
    }
    for (var q = 0u; q < QUADS; q++) {
      let s = e0m_scales(scales[pair_at + g / SPAN * panel + q]);
      total[q] += s.scale * (dots[q] - s.bias * sum);
    }
  }
  for (var q = 0u; q < QUADS; q++) { part[lid * QUADS + q] = total[q]; }
  workgroupBarrier();
  for (var t = lid; 4u * t < LANES * COLS && first + 4u * t < p.n; t += WG) {
    var v = vec4<f32>();
    for (var i = 0u; i < SLICES; i++) { v += part[i * LANES * QUADS + t]; }
    let at = first + 4u * t;
    y_put2((p.column + at) / 2u, v.xy);
    if (at + 2u < p.n) { y_put2((p.column + at) / 2u + 1u, v.zw); }
  }
}
