// y[i, :] = column index[i] of an E0M matrix, for columns first .. first + part_rows; other results
// are kept. A work-item writes results 2t and 2t + 1 of one row. The first part writes zeros for an
// index outside the whole matrix.
#include "common/e0m"

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  uint i = 2 * pair / p.k, k = 2 * pair % p.k;
  int at = index_at(i);
  if (at < 0) at += p.table_rows;
  int j = at - p.first;
  if (j >= 0 && j < p.part_rows) {
    uint block = (uint)j / p.panel, column = (uint)j % p.panel;
    __global const uint *pair_at = (__global const uint *)scales + block * E0M_SCALE_ROWS(p.k) * p.panel + column;
    __global const uint *word_at = (__global const uint *)codes + block * E0M_ROWS(p.k / PER) * p.panel + column;
    uint word = E0M_HIGH(*, word_at, k / PER, p.panel) >> (k % PER / 2 * E0M_WIDTH);
    uint low = E0M_LOW(*, word_at, k / PER, p.panel) >> (k % PER / 2 * (BITS - E0M_WIDTH));
    float2 level = (float2)(as_float(E0M_LEVEL(word, low, 0)), as_float(E0M_LEVEL(word, low, 1)));
#ifdef NESTED
    E0M_SCALES(uint, float, *, pair_at, k / (GROUP * SPAN), p.panel, p.k)
    y_put2(pair, E0M_WEIGHT(level, scale, rest));
#else
    uint s = pair_at[k / (GROUP * SPAN) * p.panel];
    y_put2(pair, E0M_HALF(float, s) * (level - E0M_HALF(float, s >> 16u)));
#endif
  } else if (p.first == 0) {
    y_put2(pair, (float2)(0.0f));
  }
}
