// y[i, column + j] = sum_k x[i, k] * w[k, j] for rows x of signed bytes (from quantize_rows, in
// blocks of GROUP terms) and an E0M weight of 4 or 8 bits. A work-item computes ROWS rows of COLS
// neighbouring columns. With PARTS, the columns up to end0, up to end1 and the rest are separate
// results, which start at elements 0, start1 and start2.
//
// With x = a * q and w = s * (2 + c / UNIT - b), the sum over a block is s * (a / UNIT * sum q * c
// + (2 - b) * a * sum q): products of bytes, and a sum that is stored with x.
#include "common/e0m"
#include "common/parts"
#include "common/dot"
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define LOAD(at) CAT(vload, COLS)(0, at)
#define EACH_ROW _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
#ifdef PER4
#define STEP(t) { \
    UINTS word = CODES_OF(LOAD(word_at + (t) * p.panel)); \
    EACH_ROW sums[r] = DOT(sums[r], word, x[row[r] * steps + (t)]); \
  }
#else
#define STEP(t) { \
    UINTS word = LOAD(word_at + (t) * p.panel), even = word & 0x0F0F0F0Fu, odd = (word >> 4u) & 0x0F0F0F0Fu; \
    EACH_ROW { \
      uint at = 2 * (row[r] * steps + (t)); \
      sums[r] = DOT(DOT(sums[r], even, x[at]), odd, x[at + 1]); \
    } \
  }
#endif
#define RESULT_INDEX(i, c) result_at(i, c, p.y_stride, p)

KERNEL {
  uint i0 = get_group_id(0) * ROWS, j = (get_group_id(1) * WG + get_local_id(0)) * COLS;
  uint from = j < p.n ? j : 0, steps = p.k / PER, blocks = (p.k + GROUP - 1) / GROUP;
  __global const uint *word_at =
      (__global const uint *)codes + from / p.panel * E0M_ROWS(steps) * p.panel + from % p.panel;
  __global const uint *pair_at =
      (__global const uint *)scales + from / p.panel * E0M_SCALE_ROWS(p.k) * p.panel + from % p.panel;
  FLOATS total[ROWS];
  uint row[ROWS];
  EACH_ROW {
    total[r] = (FLOATS)(0.0f);
    row[r] = min(i0 + r, p.m - 1);
  }
  for (uint g = 0; g < blocks; g++) {
    INTS dots[ROWS];
    EACH_ROW dots[r] = (INTS)(0);
    uint t = g * (GROUP / PER), end = min(t + GROUP / PER, steps);
    BY_STEPS(PARTIAL sums[ROWS]; EACH_ROW sums[r] = (PARTIAL)(0), EACH_ROW dots[r] += WIDEN(sums[r]))
#ifdef NESTED
    E0M_SCALES(UINTS, FLOATS, LOAD, pair_at, g / SPAN, p.panel, p.k)
    FLOATS level = scale / CODES_UNIT, least = E0M_WEIGHT(LEAST_LEVEL, scale, rest);
#else
    UINTS pair = LOAD(pair_at + g / SPAN * p.panel);
    FLOATS scale = E0M_HALF(FLOATS, pair), level = scale / CODES_UNIT,
        least = scale * (LEAST_LEVEL - E0M_HALF(FLOATS, pair >> 16u));
#endif
    EACH_ROW {
      uint at = 2 * (row[r] * blocks + g);
      total[r] += as_float(factors[at]) * (level * CAT(convert_float, COLS)(dots[r]))
          + as_float(factors[at + 1]) * least;
    }
  }
  if (j >= p.n) return;
  for (uint r = 0; r < ROWS && i0 + r < p.m; r++) {
    // Selected by comparisons: an index unknown to the compiler would keep all sums in memory.
    FLOATS one = total[0];
    _Pragma("unroll") for (uint q = 1; q < ROWS; q++) one = q == r ? total[q] : one;
    uint i = i0 + r, c = p.column + j;
    y_put2(RESULT_INDEX(i, c) / 2, one.lo);
    if (j + 2 < p.n) y_put2(RESULT_INDEX(i, c + 2) / 2, one.hi);
  }
}
