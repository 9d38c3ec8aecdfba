// y[z, i, j] = sum over k of (a[z, i, k] - a_zero) * (b[z, j, k] - b_zero), requantized to bytes.
// Rows of a and b have k bytes in whole words; `tail` masks the last word. Sums for j from n on are
// 0. A work-item computes one word of a row.
#define COLS 4
#include "common/dot"
#include "common/int8"

inline int result(int sum, const Params p) {
#ifdef FIXED
  return within(multiplied(sum, p.mantissa, p.shift), p.zero, p.low, p.high);
#else
  return by_float(sum, p.factor, p.zero, p.low, p.high);
#endif
}

KERNEL {
  uint i = get_group_id(0) * WG + get_local_id(0), o = get_group_id(1), z = get_group_id(2);
  if (i >= p.m) return;
  __global const uint *row = a + z * p.a_step + i * p.words, *columns = b + z * p.b_step;
  uint at[4];
  for (uint c = 0; c < 4; c++) at[c] = min(4 * o + c, p.n - 1) * p.words;
  int4 sums = (int4)(0), of_b = (int4)(0), of_a = (int4)(0);
  for (uint k = 0; k < p.words; k++) {
    uint mask = k + 1 < p.words ? 0xFFFFFFFFu : p.tail, v = row[k] & mask, ones = 0x01010101u & mask;
    uint4 words = (uint4)(columns[at[0] + k], columns[at[1] + k], columns[at[2] + k], columns[at[3] + k]);
    sums = DOT(sums, words, v);
    of_b = DOT(of_b, words, ones);
    of_a = DOT(of_a, (uint4)(0x01010101u), v);
  }
  sums += p.a_zero * (p.b_zero * (int)p.k - of_b) - p.b_zero * of_a;
  int4 v = (int4)(result(sums.x, p), result(4 * o + 1 < p.n ? sums.y : 0, p), result(4 * o + 2 < p.n ? sums.z : 0, p),
                  result(4 * o + 3 < p.n ? sums.w : 0, p));
  y[(z * p.m + i) * p.outputs + o] = word_of(v);
}
