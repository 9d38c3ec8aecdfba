// y[o, i, :] = table[o, index[i], :] for rows first .. first + part_rows of a table of table_rows;
// other results are kept. A work-item writes two neighbouring results. The first part writes zeros
// for an index outside the whole table.
fn element(i: u32) -> ELEM {
  var at = index_at(i / p.row % p.indices);
  if (at < 0) { at += p.table_rows; }
  let row = at - p.first;
  if (row >= 0 && row < p.part_rows) {
    return table_at((i / p.row / p.indices * u32(p.part_rows) + u32(row)) * p.row + i % p.row);
  }
  if (p.first == 0) { return ELEM(0); }
  return y_at(i);
}

@compute @workgroup_size(WG)
fn gather(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
