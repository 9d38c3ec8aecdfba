// y[i, column + j] = sum_k x[i, k] * w[k, j] for rows x of signed bytes (from quantize_rows, in
// blocks of GROUP terms) and an E0M weight of 4 or 8 bits. A work-item computes ROWS rows of COLS
// (4) neighbouring columns. With PARTS, the columns up to end0, up to end1 and the rest are
// separate results, which start at elements 0, start1 and start2.
//
// With x = a * q and w = s * (2 + c / UNIT - b), the sum over a block is s * (a / UNIT * sum q * c
// + (2 - b) * a * sum q): products of bytes, and a sum that is stored with x. Codes of 8 bits are
// signed too, that is, code - 128.
#include "common/e0m"
#include "common/parts"
#include "common/dot"
const STRETCH: u32 = GROUP / PER;

fn put(row: u32, at: u32, v: vec4<f32>) {
  let c = p.column + at;
  if (row < p.m && at < p.n) { y_put2(result_at(row, c, p.y_stride) / 2u, v.xy); }
  if (row < p.m && at + 2u < p.n) { y_put2(result_at(row, c + 2u, p.y_stride) / 2u, v.zw); }
}

@compute @workgroup_size(WG)
fn matmul_e0m_int8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i0 = group.x * ROWS;
  let j = (group.y * WG + lid) * COLS;
  let column = select(0u, j, j < p.n);
  let panel = p.panel / 4u;
  let steps = p.k / PER;
  let blocks = (p.k + GROUP - 1u) / GROUP;
  let word_at = column / p.panel * e0m_rows(steps) * panel + column % p.panel / 4u;
  let pair_at = column / p.panel * e0m_scale_rows(p.k) * panel + column % p.panel / 4u;
  var total: array<vec4<f32>, ROWS>;
  for (var g = 0u; g < blocks; g++) {
    var sums: array<vec4<i32>, ROWS>;
    let end = min((g + 1u) * STRETCH, steps);
    for (var t = g * STRETCH; t < end; t++) {
      let words = codes[word_at + t * panel];
#ifdef PER4
      let own = codes_of(words);
      for (var r = 0u; r < ROWS; r++) { sums[r] = dots(sums[r], own, x[min(i0 + r, p.m - 1u) * steps + t]); }
#else
      let even = words & vec4<u32>(0x0F0F0F0Fu);
      let odd = (words >> vec4<u32>(4u)) & vec4<u32>(0x0F0F0F0Fu);
      for (var r = 0u; r < ROWS; r++) {
        let at = 2u * (min(i0 + r, p.m - 1u) * steps + t);
        sums[r] = dots(dots(sums[r], even, x[at]), odd, x[at + 1u]);
      }
#endif
    }
#ifdef NESTED
    let s = e0m_decode(e0m_nested(pair_at, g / SPAN, panel, p.k));
    let least = e0m_weight(vec4<f32>(LEAST_LEVEL), s.scale, s.rest);
#else
    let s = e0m_scales(scales[pair_at + g / SPAN * panel]);
    let least = s.scale * (LEAST_LEVEL - s.bias);
#endif
    let level = s.scale / CODES_UNIT;
    for (var r = 0u; r < ROWS; r++) {
      let at = 2u * (min(i0 + r, p.m - 1u) * blocks + g);
      total[r] += bitcast<f32>(factors[at]) * (level * vec4<f32>(sums[r])) + bitcast<f32>(factors[at + 1u]) * least;
    }
  }
  for (var r = 0u; r < ROWS; r++) { put(i0 + r, j, total[r]); }
}
