// y[i, column + j] = sum_k x[i, k] * w[k, j] for rows x in signed bytes (quantize_rows, in blocks of GROUP places) and an E0M weight of 4 or 8
// bits. A work-item takes ROWS rows of COLS neighbouring columns; LANES of them lie side by side in a work-group, and WG / LANES, with
// SLICED and one row, share a column block, each taking every so many blocks. With PARTS the columns up to end0, up to end1 and the rest are results of their
// own, from elements 0, start1 and start2 on.
//
// With x = a * q and w = s * (2 + c / UNIT - b) the sum over a block is s * (a / UNIT * sum q * c + (2 - b) * a * sum q): products of bytes, and the
// sum that comes with them.
#include "common/e0m"
#include "common/dot"
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define SLICES (WG / LANES)
#define LOAD(at) CAT(vload, COLS)(0, at)
#define HALVES(h) (CAT(as_float, COLS)((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)
#ifdef PER4
#define UNIT 128.0f
#else
#define UNIT 8.0f
#endif
#define EACH_ROW _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
#ifdef PARTS
#define PLACE(i, c) ((c) < p.end0 ? (i) * p.end0 + (c) : (c) < p.end1 ? p.start1 + (i) * (p.end1 - p.end0) + (c) - p.end0 : p.start2 + (i) * (p.y_stride - p.end1) + (c) - p.end1)
#else
#define PLACE(i, c) ((i) * p.y_stride + (c))
#endif

KERNEL {
  uint lid = get_local_id(0), lane = lid % LANES, i0 = get_group_id(0) * ROWS;
  uint first = get_group_id(1) * (LANES * COLS), j = first + lane * COLS;
  uint from = j < p.n ? j : 0, steps = p.k / PER, blocks = (p.k + GROUP - 1) / GROUP;
  __global const uint *word_at = (__global const uint *)codes + from / p.panel * E0M_ROWS(steps) * p.panel + from % p.panel;
  __global const uint *pair_at = (__global const uint *)scales + from / p.panel * E0M_GROUPS(p.k) * p.panel + from % p.panel;
  FLOATS total[ROWS];
  uint row[ROWS];
  EACH_ROW {
    total[r] = (FLOATS)(0.0f);
    row[r] = min(i0 + r, p.m - 1);
  }
  for (uint g = lid / LANES; g < blocks; g += SLICES) {
    INTS dots[ROWS];
    EACH_ROW dots[r] = (INTS)(0);
    uint t = g * (GROUP / PER), end = min(t + GROUP / PER, steps);
    while (t < end) {
      PARTIAL sums[ROWS];
      EACH_ROW sums[r] = (PARTIAL)(0);
      for (uint last = min(t + DOT_STEPS, end); t < last; t++) {
        UINTS word = LOAD(word_at + t * p.panel);
#ifdef PER4
        word = CODES_OF(word);
        EACH_ROW sums[r] = DOT(sums[r], word, x[row[r] * steps + t]);
#else
        UINTS even = word & 0x0F0F0F0Fu, odd = (word >> 4u) & 0x0F0F0F0Fu;
        EACH_ROW {
          uint at = 2 * (row[r] * steps + t);
          sums[r] = DOT(sums[r], even, x[at]);
          sums[r] = DOT(sums[r], odd, x[at + 1]);
        }
#endif
      }
      EACH_ROW dots[r] += WIDEN(sums[r]);
    }
    UINTS pair = LOAD(pair_at + g / SPAN * p.panel);
    FLOATS scale = HALVES(pair), level = scale / UNIT, rest = scale * (LEAST_LEVEL - HALVES(pair >> 16u));
    EACH_ROW {
      uint at = 2 * (row[r] * blocks + g);
      total[r] += as_float(factors[at]) * (level * CAT(convert_float, COLS)(dots[r])) + as_float(factors[at + 1]) * rest;
    }
  }
#ifdef SLICED
  // One row, of which slices are added up.
  __local float part[WG * COLS];
  CAT(vstore, COLS)(total[0], lid, part);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint t = 2 * lid; t < LANES * COLS && first + t < p.n; t += 2 * WG) {
    float2 v = (float2)(0.0f);
    for (uint i = 0; i < SLICES; i++) v += vload2((i * LANES * COLS + t) / 2, part);
    uint c = p.column + first + t;
    y_put2(PLACE(0, c) / 2, v);
  }
#else
  if (j >= p.n) return;
  EACH_ROW if (i0 + r < p.m) {
    uint i = i0 + r, c = p.column + j;
#ifdef RUNS
    if (j + COLS <= p.n && PLACE(i, c + COLS - 1) == PLACE(i, c) + COLS - 1) {
      y_put_run(COLS, PLACE(i, c), total[r]);
      continue;
    }
#endif
    float one[COLS];
    CAT(vstore, COLS)(total[r], 0, one);
    for (uint q = 0; q < COLS && j + q < p.n; q += 2) y_put2(PLACE(i, c + q) / 2, vload2(q / 2, one));
  }
#endif
}
