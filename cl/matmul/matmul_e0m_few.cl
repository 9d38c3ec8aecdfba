// y[i, column + j] = sum_k x[i, k] * w[k, j] for a few rows of halves and an E0M weight of 4 or 8
// bits, on tensor cores. A work-group computes FEW rows, 8 or 16, and 32 columns. Its warps share
// the k-blocks. A work-item loads vectors of four columns, and loads the next k-block while it sums
// one. Rows lie along the short side of the tensor cores. x is multiplied by halves that follow
// exactly from w1 by a factor and a term. With w = s * (w1 - b), the sums are scaled here, so no
// weight is rounded.
//
// With PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2. With HAS_CODES2, every other warp multiplies by a second weight of
// the same size, and the epilogue takes the results of both.
//
// With HAS_GAIN, each work-group normalizes the DEPTH elements of a row: x / sqrt(mean of squares +
// epsilon) * gain. Rows are multiplied by the gain and by powers of two, so that halves neither
// overflow nor are rounded twice. The rest of the factor multiplies the sums.
#include "common/e0m"
#include "common/parts"
#include "common/mma"
#include "common/e0m_mma"
// Number of groups of eight rows.
#define EIGHTS (FEW / 8)
#define EACH_EIGHT _Pragma("unroll") for (uint r = 0; r < EIGHTS; r++)
// Rows, of each eight, whose sums a work-item has.
#define ROWS_PER_ITEM 2
#define LOAD_WORDS(words, pair, s) { \
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) words[b] = word_at[(BLOCK_OF(s) * 4 + t) * step]; \
    pair = pair_at[(s) / SPAN * step]; \
  }
#define LOAD_XS(xs, s) { \
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) EACH_EIGHT xs[b][r] = x_rows[r][BLOCK_OF(s) * 4 + t]; \
  }
#define LOAD(words, xs, pair, s) { LOAD_WORDS(words, pair, s) LOAD_XS(xs, s) }
#ifdef HAS_GAIN
// Warps that sum the squares of a row.
#define SHARES (WARPS > FEW ? WARPS / FEW : 1)
#define SCALE_HALVES(v, gain, power) \
  HALVES_MUL(v, v, power); \
  HALVES_MUL(v, v, gain);
#ifdef PER4
#define SCALE_XS(v, gain, power) \
  SCALE_HALVES(v.x, gain.x, power) \
  SCALE_HALVES(v.y, gain.y, power)
#else
#define SCALE_XS(v, gain, power) \
  SCALE_HALVES(v.x, gain.x, power) \
  SCALE_HALVES(v.y, gain.y, power) \
  SCALE_HALVES(v.z, gain.z, power) \
  SCALE_HALVES(v.w, gain.w, power)
#endif
#define NORMALIZE(v, s) { \
    XS gain = gain_words[BLOCK_OF(s) * 4 + t]; \
    EACH_EIGHT { SCALE_XS(v[r], gain, powers[r]) } \
  }
#define FACTOR(row) factors[row]
#else
#define NORMALIZE(v, s)
#define FACTOR(row) 1.0f
#endif
// Pairs of x that multiply codes at the same bits.
#define X0(v) v.x
#define X1(v) v.z
#define X2(v) v.y
#define X3(v) v.w
#define ADD_AT(c, class, a, b, from, v, first, second) { \
    PAIR(a0, a, from) \
    PAIR(b0, b, from) \
    PAIR(a8, (a) >> 8u, from) \
    PAIR(b8, (b) >> 8u, from) \
    EACH_EIGHT MMA(c[r][class], a0, b0, a8, b8, first(v[r]), second(v[r])); \
  }
#ifdef PER4
#define FIRST(v) v.x
#define SECOND(v) v.y
#define ADD(c, a, b, v) ADD_AT(c, 0, a, b, 0, v, FIRST, SECOND)
#define ADD_ONES(c, v) { EACH_EIGHT MMA(c[r][0], ONES, ONES, ONES, ONES, v[r].x, v[r].y); }
#define CLASSES 1
#define DOT_W1(c, i) (LEVEL_SCALE(0) * c[r][0][i] + LEVEL_TERM(0) * sum[r][0][h])
#define SUM_OF_X sum[r][0][h]
#else
// Codes at different bits have separate sums.
#define ADD(c, a, b, v) ADD_AT(c, 0, a, b, 0, v, X0, X1) ADD_AT(c, 1, a, b, 4, v, X2, X3)
#define ADD_ONES(c, v) { \
    EACH_EIGHT { \
      MMA(c[r][0], ONES, ONES, ONES, ONES, X0(v[r]), X1(v[r])); \
      MMA(c[r][1], ONES, ONES, ONES, ONES, X2(v[r]), X3(v[r])); \
    } \
  }
#define CLASSES 2
#define DOT_W1(c, i) \
  (LEVEL_SCALE(0) * c[r][0][i] + LEVEL_TERM(0) * sum[r][0][h] + LEVEL_SCALE(4) * c[r][1][i] + LEVEL_TERM(4) * sum[r][1][h])
#define SUM_OF_X (sum[r][0][h] + sum[r][1][h])
#endif
// Adds the scaled sums of a column, for row h of the work-item's rows.
#define ADD_SCALED(c, pair, dot) { \
    float scale, bias; \
    FLOATS_OF(scale, bias, pair.c); \
    EACH_EIGHT _Pragma("unroll") for (uint h = 0; h < ROWS_PER_ITEM; h++) \
      total[r][h].c += scale * ((dot) - bias * SUM_OF_X); \
  }
#define NEW_SUMS \
  float low[EIGHTS][CLASSES][4], high[EIGHTS][CLASSES][4], sum[EIGHTS][CLASSES][4]; \
  EACH_EIGHT \
    for (uint c = 0; c < CLASSES; c++) \
      for (uint e = 0; e < 4; e++) low[r][c][e] = high[r][c][e] = sum[r][c][e] = 0.0f;
// The sums of a k-block, while the next one is loaded.
#define SUM_K_BLOCK(words, xs, pair, s) { \
    NEW_SUMS \
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) { \
      if (IS_BEYOND_END(s)) break; \
      NORMALIZE(xs[b], s) \
      ADD(low, words[b].x, words[b].y, xs[b]) \
      ADD(high, words[b].z, words[b].w, xs[b]) \
      ADD_ONES(sum, xs[b]) \
    } \
    ADD_SCALED(x, pair, DOT_W1(low, h)) \
    ADD_SCALED(y, pair, DOT_W1(low, 2 + h)) \
    ADD_SCALED(z, pair, DOT_W1(high, h)) \
    ADD_SCALED(w, pair, DOT_W1(high, 2 + h)) \
  }

KERNEL {
  __local float4 part[WARPS * 8 * FEW];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint first = get_group_id(0) * 32, j = first + 4 * g;
  j = j < p.n ? j : 0;
  uint warp = lid / 32;
  __global const uint4 *codes_of = codes, *scales_of = scales;
#ifdef HAS_CODES2
  if (warp % 2 == 1) {
    codes_of = codes2;
    scales_of = scales2;
  }
#endif
  uint blocks = p.steps / 4, k_blocks = (blocks + BLOCKS_EACH - 1) / BLOCKS_EACH, step = p.panel / 4;
  __global const uint4 *word_at = codes_of + j / 4, *pair_at = scales_of + j / 4;
#ifdef HAS_GAIN
  __local uint4 gain8[DEPTH / 8];
  __local const XS *gain_words = (__local const XS *)gain8;
  __local float squares[FEW * SHARES], factors[FEW];
#endif
  __global const XS *x_words = (__global const XS *)x;
  // Missing rows repeat the last row and are not stored.
  __global const XS *x_rows[EIGHTS];
  uint row0 = get_group_id(1) * FEW;
  EACH_EIGHT x_rows[r] = x_words + min(row0 + 8 * r + g, p.m - 1) * p.steps;
  float4 total[EIGHTS][ROWS_PER_ITEM];
  EACH_EIGHT for (uint h = 0; h < ROWS_PER_ITEM; h++) total[r][h] = (float4)(0.0f);
  uint4 words[BLOCKS_EACH], next_words[BLOCKS_EACH], pair, next_pair;
  XS xs[BLOCKS_EACH][EIGHTS], next_xs[BLOCKS_EACH][EIGHTS];
  uint s = warp / SIDES;
  if (s < k_blocks) LOAD(words, xs, pair, s)
#ifdef HAS_GAIN
  float v[8];
  for (uint i = lid; i < DEPTH / 8; i += WG) {
    float4 low = gain_at4(2 * i), high = gain_at4(2 * i + 1);
    uint4 halves;
    HALVES_OF(halves.x, low.x, low.y);
    HALVES_OF(halves.y, low.z, low.w);
    HALVES_OF(halves.z, high.x, high.y);
    HALVES_OF(halves.w, high.z, high.w);
    gain8[i] = halves;
  }
  for (uint r = warp / SHARES; r < FEW; r += WARPS / SHARES) {
    __global const uint4 *eights = (__global const uint4 *)(x_words + min(row0 + r, p.m - 1) * p.steps);
    float square = 0.0f;
    _Pragma("unroll 8") for (uint i = lane + 32 * (warp % SHARES); i < DEPTH / 8; i += 32 * SHARES) {
      uint4 eight = eights[i];
      UNPACK_EIGHT(v, eight)
      _Pragma("unroll") for (uint c = 0; c < 8; c++) square += v[c] * v[c];
    }
    SUM_OF_WARP(square)
    if (lane == 0) squares[r * SHARES + warp % SHARES] = square;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  uint powers[EIGHTS];
  EACH_EIGHT {
    float square = 0.0f;
    for (uint i = 0; i < SHARES; i++) square += squares[(8 * r + g) * SHARES + i];
    float factor = rsqrt(square / (float)DEPTH + p.epsilon);
    float power = clamp(as_float(as_uint(factor) & 0x7F800000u), 0x1p-14f, 0x1p15f);
    HALVES_OF(powers[r], power, power);
    if (lid < 32 && t == 0) factors[8 * r + g] = factor / power;
  }
#endif
  // Two k-blocks per iteration, so that no words are copied between registers.
  while (s < k_blocks) {
    uint after = s + WARPS / SIDES;
    if (after < k_blocks) LOAD(next_words, next_xs, next_pair, after)
    SUM_K_BLOCK(words, xs, pair, s)
    s = after;
    if (s >= k_blocks) break;
    after = s + WARPS / SIDES;
    if (after < k_blocks) LOAD(words, xs, pair, after)
    SUM_K_BLOCK(next_words, next_xs, next_pair, s)
    s = after;
  }
  EACH_EIGHT _Pragma("unroll") for (uint h = 0; h < ROWS_PER_ITEM; h++)
    part[(warp * FEW + 8 * r + 2 * t + h) * 8 + g] = total[r][h];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = lid; i < 16 * FEW; i += WG) {
    uint row = i / 16, column = first + i % 16 * 2;
    if (row0 + row >= p.m || column >= p.n) continue;
    float2 v = (float2)(0.0f);
    for (uint w = 0; w < WARPS; w += SIDES) v += ((__local float2 *)part)[(w * FEW + row) * 16 + i % 16];
    v *= FACTOR(row);
    uint c = result_at(row0 + row, p.column + column, p.y_stride, p);
#ifdef HAS_CODES2
    float2 u = (float2)(0.0f);
    for (uint w = 1; w < WARPS; w += 2) u += ((__local float2 *)part)[(w * FEW + row) * 16 + i % 16];
    u *= FACTOR(row);
    y_put2(c / 2, v, u);
#else
    y_put2(c / 2, v);
#endif
  }
}
