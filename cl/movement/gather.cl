// y[o, i, :] = table[o, index[i], :] for rows first .. first + part_rows of a table of table_rows;
// other results are kept. A work-item writes two neighbouring results. The first part writes zeros
// for an index outside the whole table.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1);
    int at = index_at(i / p.row % p.indices);
    if (at < 0) at += p.table_rows;
    int row = at - p.first;
    if (row >= 0 && row < p.part_rows)
      v[h] = table_at((i / p.row / p.indices * (uint)p.part_rows + (uint)row) * p.row + i % p.row);
    else v[h] = p.first == 0 ? 0 : y_at(i);
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
