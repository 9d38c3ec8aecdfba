// y[i, :] = column index[i] of an E0M matrix, for columns first .. first + part_rows; other results
// are kept. A work-item writes results 2t and 2t + 1 of one row. The first part writes zeros for an
// index outside the whole matrix.
#include "common/e0m"

@compute @workgroup_size(WG)
fn gather_e0m(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  let i = 2u * pair / p.k;
  let k = 2u * pair % p.k;
  var at = index_at(i);
  if (at < 0) { at += p.table_rows; }
  let j = at - p.first;
  if (j >= 0 && j < p.part_rows) {
    let block = u32(j) / p.panel;
    let column = u32(j) % p.panel;
    let pair_at = (block * e0m_scale_rows(p.k) * p.panel + column) / 4u;
    let words = e0m_words((block * e0m_rows(p.k / PER) * p.panel + column) / 4u, k / PER, p.panel / 4u);
    let first = e0m_levels(words, k % PER);
    let second = e0m_levels(words, k % PER + 1u);
#ifdef NESTED
    let s = e0m_decode(e0m_nested(pair_at, k / (GROUP * SPAN), p.panel / 4u, p.k));
    let a = e0m_weight(first, s.scale, s.rest);
    let b = e0m_weight(second, s.scale, s.rest);
    y_put2(pair, vec2<f32>(a[column % 4u], b[column % 4u]));
#else
    let s = unpack2x16float(scales[pair_at + k / (GROUP * SPAN) * (p.panel / 4u)][column % 4u]);
    y_put2(pair, s.x * (vec2<f32>(first[column % 4u], second[column % 4u]) - s.y));
#endif
  } else if (p.first == 0) {
    y_put2(pair, vec2<f32>());
  }
}
