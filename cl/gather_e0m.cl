// y[i, :] = column index[i] of an E0M matrix, for columns first .. first + part_rows; other results are kept. A work-item owns
// results 2t and 2t + 1 of one row. The first part writes zeros for an index outside the whole matrix.
#include "common/e0m4"

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  uint i = 2 * pair / p.k, k = 2 * pair % p.k;
  int at = index_at(i);
  if (at < 0) at += p.table_rows;
  int j = at - p.first;
  if (j >= 0 && j < p.part_rows) {
    uint block = (uint)j / p.panel, column = (uint)j % p.panel;
    uint s = ((__global const uint *)scales)[(block * ((p.k + GROUP - 1) / GROUP) + k / GROUP) * p.panel + column];
    uint word = ((__global const uint *)codes)[(block * (p.k / PER) + k / PER) * p.panel + column] >> (k % PER / 2 * BITS);
    float2 level = (float2)(as_float(E0M_LEVEL(word, 0)), as_float(E0M_LEVEL(word, 1)));
    y_put2(pair, E0M_HALF(float, s) * (level - E0M_HALF(float, s >> 16u)));
  } else if (p.first == 0) {
    y_put2(pair, (float2)(0.0f));
  }
}
