// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows of halves and an E0M weight, on tensor
// cores. A work-group computes ROWS rows and ACROSS * 32 columns. Each warp computes 32 columns
// over its share of the k-blocks, and loads the next k-block while it sums one. Weights are decoded
// to halves s * (w1 - b) once for all rows. Rows lie along the short side of the tensor cores. With
// PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2. With HAS_CODES2, the epilogue takes the results of both weights.
#include "common/e0m"
#include "common/parts"
#include "common/mma"
#include "common/e0m_mma"
#define ROWS 32
#define EIGHTS (ROWS / 8)
#define EACH_EIGHT(count) _Pragma("unroll") for (uint r = 0; r < (count); r++)
#define EACH_HALF _Pragma("unroll") for (uint h = 0; h < 2; h++)
// NEIGHBOURS: warps with the same share of the k-blocks, but other columns or the other weight.
// SHARES: warps with the same columns and weight.
#define NEIGHBOURS (SIDES * ACROSS)
#define SHARES (WARPS / NEIGHBOURS)
#ifdef PER4
#define PAIRS 2
#else
#define PAIRS 4
#endif
#ifdef HIGH
#define LEVEL_PAIR(d, word, low, j) d = E0M_HALVES(word, low, j, 0x40004000u);
#else
#define LEVEL_PAIR(d, word, low, j) MASKED_OR(d, E0M_MOVE(word, (j) * BITS, 10 - BITS), LEVELS(10 - BITS), 0x40004000u);
#endif
// With more than 128 registers, only one work-group of 8 warps fits on a compute unit. So scales
// are loaded late, and rows of x are kept as indices, not addresses.
#define LOAD(words, s) { \
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) LOAD_CODES(words[b], BLOCK_OF(s) * 4 + t); \
  }
// SCALES: pairs of halves per column. With pairs, weights are (w1 - bias) * scale; with nested
// scales, (w1 - 2) * scale + bias.
#ifdef NESTED
#define SCALE_WORDS(at) pair_at[at]
#define SCALES(s) \
  uint scale[4], bias[4]; \
  { \
    uint4 halves, entry; \
    E0M_NESTED(halves, entry, SCALE_WORDS, 0, (s) * GROUPS + OWN_GROUP, step, p.steps * PER) \
    float4 unit, rest; \
    E0M_DECODE(float4, unit, rest, halves, entry) \
    float4 least = E0M_WEIGHT(2.0f, unit, rest); \
    HALVES_OF(scale[0], unit.x, unit.x); \
    HALVES_OF(scale[1], unit.y, unit.y); \
    HALVES_OF(scale[2], unit.z, unit.z); \
    HALVES_OF(scale[3], unit.w, unit.w); \
    HALVES_OF(bias[0], least.x, least.x); \
    HALVES_OF(bias[1], least.y, least.y); \
    HALVES_OF(bias[2], least.z, least.z); \
    HALVES_OF(bias[3], least.w, least.w); \
  }
#define SCALED(w, level, scale, bias) { \
    uint d; \
    HALVES_SUB(d, level, 0x40004000u); \
    HALVES_FMA(w, d, scale, bias); \
  }
#else
#define SCALES(s) \
  uint4 pair = pair_at[(s) / SPAN * step]; \
  uint scale[4], bias[4], of_pair[4] = {pair.x, pair.y, pair.z, pair.w}; \
  _Pragma("unroll") for (uint c = 0; c < 4; c++) { \
    scale[c] = (of_pair[c] & 0xFFFFu) | (of_pair[c] << 16u); \
    bias[c] = (of_pair[c] >> 16u) | (of_pair[c] & 0xFFFF0000u); \
  }
#define SCALED(w, level, scale, bias) { \
    uint d; \
    HALVES_SUB(d, level, bias); \
    HALVES_MUL(w, d, scale); \
  }
#endif
#define SUM_BLOCK(words, s, eights) { \
    SCALES(s) \
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) { \
      if (IS_BEYOND_END(s)) break; \
      XS xs[EIGHTS]; \
      EACH_EIGHT(eights) xs[r] = ((__global const XS *)x)[x_rows[r] + BLOCK_OF(s) * 4 + t]; \
      uint w[4][PAIRS]; \
      uint4 word4 = HIGH_WORDS(words[b]), low4 = LOW_WORDS(words[b]); \
      uint word[4] = {word4.x, word4.y, word4.z, word4.w}, low[4] = {low4.x, low4.y, low4.z, low4.w}; \
      _Pragma("unroll") for (uint c = 0; c < 4; c++) { \
        _Pragma("unroll") for (uint e = 0; e < PAIRS; e++) { \
          uint level; \
          LEVEL_PAIR(level, word[c], low[c], e); \
          SCALED(w[c][e], level, scale[c], bias[c]) \
        } \
      } \
      EACH_EIGHT(eights) ADD_PRODUCTS(sum[r], w, xs[r]) \
    } \
  }
#ifdef PER4
#define ADD_PRODUCTS(c, w, v) { \
    MMA(c[0], w[0][0], w[1][0], w[0][1], w[1][1], v.x, v.y); \
    MMA(c[1], w[2][0], w[3][0], w[2][1], w[3][1], v.x, v.y); \
  }
#else
#define ADD_PRODUCTS(c, w, v) { \
    MMA(c[0], w[0][0], w[1][0], w[0][1], w[1][1], v.x, v.y); \
    MMA(c[1], w[2][0], w[3][0], w[2][1], w[3][1], v.x, v.y); \
    MMA(c[0], w[0][2], w[1][2], w[0][3], w[1][3], v.z, v.w); \
    MMA(c[1], w[2][2], w[3][2], w[2][3], w[3][3], v.z, v.w); \
  }
#endif
#define SUMS(r, h) (float4)(sum[r][0][h], sum[r][0][2 + (h)], sum[r][1][h], sum[r][1][2 + (h)])
#define PART(of, r, h) part[((of) * ROWS + 8 * (r) + 2 * t + (h)) * 8 + g]
// Sums over the k-blocks of a share, for the first 8 * `eights` rows. The loop is unrolled by two,
// so that no words are copied between registers.
#define SUM_SHARE(eights) { \
    while (s < k_blocks) { \
      uint after = s + SHARES; \
      if (after < k_blocks) LOAD(next_words, after) \
      SUM_BLOCK(words, s, eights) \
      s = after; \
      if (s >= k_blocks) break; \
      after = s + SHARES; \
      if (after < k_blocks) LOAD(words, after) \
      SUM_BLOCK(next_words, s, eights) \
      s = after; \
    } \
  }

KERNEL {
  __local float4 part[SHARES / 2 * NEIGHBOURS * ROWS * 8];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint warp = lid / 32, neighbour = warp % NEIGHBOURS, share = warp / NEIGHBOURS;
  uint first = get_group_id(0) * ACROSS * 32, j = first + neighbour / SIDES * 32 + 4 * g;
  j = j < p.n ? j : 0;
  __global const uint4 *codes_of = codes, *scales_of = scales;
#ifdef HAS_CODES2
  if (warp % 2 == 1) {
    codes_of = codes2;
    scales_of = scales2;
  }
#endif
  uint blocks = p.steps / 4, k_blocks = (blocks + BLOCKS_EACH - 1) / BLOCKS_EACH, step = p.panel / 4;
  __global const uint4 *word_at = codes_of + j / 4, *pair_at = scales_of + j / 4;
  // Missing rows repeat the last row. Their results are not stored.
  uint x_rows[EIGHTS], row0 = get_group_id(1) * ROWS;
  EACH_EIGHT(EIGHTS) x_rows[r] = min(row0 + 8 * r + g, p.m - 1) * p.steps;
  float sum[EIGHTS][2][4];
  EACH_EIGHT(EIGHTS)
    for (uint c = 0; c < 2; c++)
      for (uint e = 0; e < 4; e++) sum[r][c][e] = 0.0f;
  Codes words[BLOCKS_EACH], next_words[BLOCKS_EACH];
  uint s = share;
  if (s < k_blocks) LOAD(words, s)
  // The last tile may be partial, and so may the only tile of a plan for many rows.
  uint left = p.m - row0;
  if (left <= 8) SUM_SHARE(1)
  else if (left <= 16) SUM_SHARE(2)
  else SUM_SHARE(EIGHTS)
  // The upper half of the warps that share sums adds them to the lower half, repeatedly.
  _Pragma("unroll") for (uint half_of = SHARES / 2; half_of > 0; half_of /= 2) {
    if (share >= half_of && share < 2 * half_of)
      EACH_EIGHT(EIGHTS) EACH_HALF
        PART((share - half_of) * NEIGHBOURS + neighbour, r, h) = SUMS(r, h);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (share < half_of)
      EACH_EIGHT(EIGHTS) EACH_HALF {
        float4 v = PART(share * NEIGHBOURS + neighbour, r, h);
        sum[r][0][h] += v.x;
        sum[r][0][2 + h] += v.y;
        sum[r][1][h] += v.z;
        sum[r][1][2 + h] += v.w;
      }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (share == 0)
    EACH_EIGHT(EIGHTS) EACH_HALF PART(neighbour, r, h) = SUMS(r, h);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = lid; i < ACROSS * 16 * ROWS; i += WG) {
    uint across = i / (16 * ROWS), row = i / 16 % ROWS, column = first + across * 32 + i % 16 * 2;
    if (row0 + row >= p.m || column >= p.n) continue;
    uint c = result_at(row0 + row, p.column + column, p.y_stride, p);
    float2 v = ((__local float2 *)part)[(across * SIDES * ROWS + row) * 16 + i % 16];
#ifdef HAS_CODES2
    y_put2(c / 2, v, ((__local float2 *)part)[((across * SIDES + 1) * ROWS + row) * 16 + i % 16]);
#else
    y_put2(c / 2, v);
#endif
  }
}
