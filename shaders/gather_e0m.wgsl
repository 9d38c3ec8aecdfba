// y[i, :] = column index[i] of an E0M matrix, for columns first .. first + part_rows; other results are kept. A work-item owns
// results 2t and 2t + 1 of one row. The first part writes zeros for an index outside the whole matrix.
#include "common/e0m4"

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
    let s = unpack2x16float(scales[((block * ((p.k + GROUP - 1u) / GROUP) + k / GROUP) * p.panel + column) / 4u][column % 4u]);
    let word = codes[((block * (p.k / PER) + k / PER) * p.panel + column) / 4u][column % 4u] >> (k % PER / 2u * BITS);
    let levels = vec2<f32>(e0m_levels(vec4<u32>(word), 0u).x, e0m_levels(vec4<u32>(word), 1u).x);
    y_put2(pair, s.x * (levels - s.y));
  } else if (p.first == 0) {
    y_put2(pair, vec2<f32>());
  }
}
