// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight of 4 or 8 bits. A work-group takes 32 columns, and its
// work-items in fours the words of a block of weights in the same columns; each warp of 32 takes every so many stretches. Here the sums
// are made of floats: no cooperative matrix has one column. With PARTS the columns up to end0, up to end1 and the rest are results of their
// own, from elements 0, start1 and start2 on.
#include "common/e0m"
const BLOCK: u32 = 4u * PER;
const EACH: u32 = GROUP / BLOCK;
const WARPS: u32 = WG / 32u;
// Sums of all work-items that share columns, column by column of eight vectors.
var<workgroup> part: array<vec4<f32>, WG>;

fn halves(word: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(word.x), unpack2x16float(word.y)); }

// The pair of results of column c.
fn place(c: u32) -> u32 {
#ifdef PARTS
  return (c + select(select(p.start2 - p.end1, p.start1 - p.end0, c < p.end1), 0u, c < p.end0)) / 2u;
#else
  return c / 2u;
#endif
}

@compute @workgroup_size(WG)
fn matvec_e0m_mma(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let quad = lid % 8u;
  let t = lid % 32u / 8u;
  let first = group.x * 32u;
  let j = select(0u, first + 4u * quad, first + 4u * quad < p.n);
  let panel = p.panel / 4u;
  let word_at = j / p.panel * p.steps * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_groups(p.steps * PER) * panel + j % p.panel / 4u;
  let blocks = p.steps / 4u;
  let stretches = (blocks + EACH - 1u) / EACH;
  var total = vec4<f32>();
  for (var s = lid / 32u; s < stretches; s += WARPS) {
    var dots = vec4<f32>();
    var sum = 0.0;
    for (var b = 0u; b < EACH; b++) {
      let block = s * EACH + b;
      if (block < blocks) {
        let step = block * 4u + t;
        let words = e0m_words(word_at, step, panel);
#ifdef PER4
        let both = x[step / 2u];
        let a = halves(select(both.xy, both.zw, (step & 1u) == 1u));
        sum += dot(a, vec4<f32>(1.0));
#else
        let both = x[step];
        let a = halves(both.xy);
        let c = halves(both.zw);
        sum += dot(a + c, vec4<f32>(1.0));
#endif
        dots += a.x * e0m_levels(words, 0u) + a.y * e0m_levels(words, 1u) + a.z * e0m_levels(words, 2u) + a.w * e0m_levels(words, 3u);
#ifndef PER4
        dots += c.x * e0m_levels(words, 4u) + c.y * e0m_levels(words, 5u) + c.z * e0m_levels(words, 6u) + c.w * e0m_levels(words, 7u);
#endif
      }
    }
    let pair = e0m_scales(scales[pair_at + s / SPAN * panel]);
    total += pair.scale * (dots - pair.bias * sum);
  }
  part[lid] = total;
  workgroupBarrier();
  // In two steps: eight work-items a vector, then one.
  if (lid < 64u) {
    var v = vec4<f32>();
    for (var i = lid; i < WG; i += 64u) { v += part[i]; }
    part[lid] = v;
  }
  workgroupBarrier();
  if (lid < 8u && first + 4u * lid < p.n) {
    var v = vec4<f32>();
    for (var i = lid; i < min(WG, 64u); i += 8u) { v += part[i]; }
    let c = p.column + first + 4u * lid;
    y_put2(place(c), v.xy);
    if (first + 4u * lid + 2u < p.n) { y_put2(place(c + 2u), v.zw); }
  }
}
