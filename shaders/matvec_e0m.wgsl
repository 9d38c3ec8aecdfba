// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-group takes LANES columns; WG / LANES
// work-items share a column, each taking every so many groups of weights.
//
// With w = s * (w1 - b): sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing a weight.
#include "common/e0m4"
const SLICES: u32 = WG / LANES;
var<workgroup> part: array<f32, WG>;

@compute @workgroup_size(WG)
fn matvec_e0m(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % LANES;
  let first = group.x * LANES;
  let j = min(first + lane, p.n - 1u);
  var total = 0.0;
  let groups = (p.words + GROUP / PER - 1u) / (GROUP / PER);
  for (var g = lid / LANES; g < groups; g += SLICES) {
    var dot_w = 0.0;
    var sum = 0.0;
    let end = min((g + 1u) * (GROUP / PER), p.words);
    for (var r = g * (GROUP / PER); r < end; r++) {
      let word = codes[r * p.stride + j];
#ifdef PER4
      let a = x_at4(r);
      sum += dot(a, vec4<f32>(1.0));
      dot_w += dot(a, vec4<f32>(e0m_pair(word, 0u), e0m_pair(word, 1u)));
#else
      let a = x_at4(2u * r);
      let b = x_at4(2u * r + 1u);
      sum += dot(a + b, vec4<f32>(1.0));
      dot_w += dot(a, vec4<f32>(e0m_pair(word, 0u), e0m_pair(word, 1u)));
      dot_w += dot(b, vec4<f32>(e0m_pair(word, 2u), e0m_pair(word, 3u)));
#endif
    }
    let s = scales_at2(g * p.stride + j);
    total += s.x * (dot_w - s.y * sum);
  }
  part[lid] = total;
  workgroupBarrier();
  let at = first + 2u * lid;
  if (2u * lid < LANES && at < p.n) {
    var v = vec2<f32>();
    for (var i = 0u; i < SLICES; i++) { v += vec2<f32>(part[i * LANES + 2u * lid], part[i * LANES + 2u * lid + 1u]); }
    y_put2((p.column + at) / 2u, v);
  }
}
