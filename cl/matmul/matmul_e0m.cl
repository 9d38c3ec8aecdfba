// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes
// ROWS rows of COLS neighbouring columns. The work-group shares a group of x, and each weight is
// decoded once for all rows. With PARTS, the columns up to end0, up to end1 and the rest are
// separate results, which start at elements 0, start1 and start2. With IMAGE_CODES, COLS is 4.
#include "common/e0m"
#include "common/parts"
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define AS_FLOATS CAT(as_float, COLS)
#define LOAD CAT(vload, COLS)
#define LOAD_AT(at) LOAD(0, at)
#ifdef IMAGE_CODES
#define CODES(at) codes_at4(at)
#else
#define CODES LOAD_AT
#endif
#define STORE CAT(vstore, COLS)
#define TERM(q) { \
    FLOATS w = E0M_WEIGHT(AS_FLOATS(E0M_LEVEL(word, low, q)), scale, rest); \
    _Pragma("unroll") for (int r = 0; r < ROWS; r++) total[r] += w * xs[r * GROUP + c + q]; \
  }

KERNEL {
  __local float xs[ROWS * GROUP];
  __local float out[WG * COLS];
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * (WG * COLS), i0 = get_group_id(1) * ROWS;
  uint j = first + lid * COLS;
  j = j < p.n ? j : 0;
  uint rows = E0M_ROWS(p.k / PER), groups = E0M_SCALE_ROWS(p.k);
#ifdef IMAGE_CODES
  uint panel = p.panel / COLS, word_at = j / p.panel * rows * panel + j % p.panel / COLS;
#else
  uint panel = p.panel;
  __global const uint *word_at = (__global const uint *)codes + j / p.panel * rows * p.panel + j % p.panel;
#endif
  __global const uint *pair_at = (__global const uint *)scales + j / p.panel * groups * p.panel + j % p.panel;
  FLOATS total[ROWS];
  for (uint r = 0; r < ROWS; r++) total[r] = (FLOATS)(0.0f);
  for (uint k0 = 0, g = 0; k0 < p.k; k0 += GROUP, g++) {
    uint len = min((uint)GROUP, p.k - k0);
    for (uint t = lid; t < ROWS * GROUP / 4; t += WG) {
      uint r = t / (GROUP / 4), c = 4 * (t % (GROUP / 4));
      float4 v = (float4)(0.0f);
      if (i0 + r < p.m && c < len) v = x_at4(((i0 + r) * p.k + k0 + c) / 4);
      vstore4(v, t, xs);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#ifdef NESTED
    E0M_SCALES(UINTS, FLOATS, LOAD_AT, pair_at, g / SPAN, p.panel, p.k)
#else
    UINTS pair = LOAD(0, pair_at + g / SPAN * p.panel);
    FLOATS scale = E0M_HALF(FLOATS, pair), rest = -scale * E0M_HALF(FLOATS, pair >> 16u);
#endif
    for (uint c = 0; c < len; c += PER) {
      uint t = (k0 + c) / PER;
      UINTS word = E0M_HIGH(CODES, word_at, t, panel), low = E0M_LOW(CODES, word_at, t, panel);
      TERM(0) TERM(1) TERM(2) TERM(3)
#ifndef PER4
      TERM(4) TERM(5) TERM(6) TERM(7)
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint r = 0; r < ROWS && i0 + r < p.m; r++) {
    // Selected by comparisons: an index unknown to the compiler would keep all sums in memory.
    FLOATS row = total[0];
    _Pragma("unroll") for (uint q = 1; q < ROWS; q++) row = q == r ? total[q] : row;
    STORE(row, lid, out);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint t = 2 * lid; t < WG * COLS && first + t < p.n; t += 2 * WG) {
      y_put2(result_at(i0 + r, p.column + first + t, p.y_stride, p) / 2, vload2(t / 2, out));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
