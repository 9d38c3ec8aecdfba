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
    float2 s = scales_at2(k / GROUP * p.stride + (uint)j);
    uint word = codes[k / PER * p.stride + (uint)j] >> (k % PER / 2 * BITS);
    y_put2(pair, s.x * (e0m_pair(word, 0) - s.y));
  } else if (p.first == 0) {
    y_put2(pair, (float2)(0.0f));
  }
}
