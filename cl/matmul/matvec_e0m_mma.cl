// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight, on tensor cores.
// A work-group computes 32 columns. Its warps share the k-blocks. x is multiplied by halves that
// follow exactly from w1 by a factor and a term. With w = s * (w1 - b), the sums are scaled here,
// so no weight is rounded.
//
// Each of the eight columns on the short side of the tensor cores takes x of other weights: those
// of a block, or of one of its two groups. So the sums of a k-block are those of up to eight
// groups, and the four work-items of a row of the result scale those of two columns each. Words are
// loaded for the next k-block as soon as they are used.
//
// With PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2. With HAS_CODES2, every other warp multiplies by a second weight of
// the same size, and the epilogue takes the results of both.
//
// With HAS_GAIN, each work-group first normalizes the DEPTH elements of x in local memory: x /
// sqrt(mean of squares + epsilon) * gain.
#include "common/e0m"
#include "common/parts"
#include "common/mma"
#include "common/e0m_mma"
// Pairs of x that multiply codes at the same bits are adjacent in a normalized row, but not in x.
#ifdef HAS_GAIN
#define X1(v) v.y
#define X2(v) v.z
#define VECTORS_PER_ITEM ((DEPTH / 8 + WG - 1) / WG)
#else
#define X1(v) v.z
#define X2(v) v.y
#endif
// ADD: adds products with two columns of words. ADD_ONES: adds x. The sum of x times w1 in column h
// of the work-item's two is DOT(c, i) plus OF_SUMS(h), which depends on the sums of x only.
#define ADD_AT(c, class, a, b, from, x0, x1) { \
    PAIR(a0, a, from) \
    PAIR(b0, b, from) \
    PAIR(a8, (a) >> 8u, from) \
    PAIR(b8, (b) >> 8u, from) \
    MMA(c[class], a0, b0, a8, b8, x0, x1); \
  }
#ifdef PER4
#define CLASSES 1
#define ADD(c, words, i, j, v) ADD_AT(c, 0, words.high.i, words.high.j, 0, v.x, v.y)
#define ADD_ONES(v) MMA(sum[0], ONES, ONES, ONES, ONES, v.x, v.y);
#define DOT(c, i) (LEVEL_SCALE(0) * c[0][i])
#define OF_SUMS(h) (LEVEL_TERM(0) * sum[0][h])
#define SUM_OF_X(h) sum[0][h]
#else
#ifdef HIGH
// w1 itself, from one or two planes.
#define PAIR_OF(words, i, k) E0M_HALVES(HIGH_WORDS(words).i, LOW_WORDS(words).i, k, 0x40004000u)
#define CLASSES 1
#define ADD(c, words, i, j, v) { \
    MMA(c[0], PAIR_OF(words, i, 0), PAIR_OF(words, j, 0), PAIR_OF(words, i, 2), PAIR_OF(words, j, 2), v.x, X1(v)); \
    MMA(c[0], PAIR_OF(words, i, 1), PAIR_OF(words, j, 1), PAIR_OF(words, i, 3), PAIR_OF(words, j, 3), X2(v), v.w); \
  }
#define ADD_ONES(v) { \
    MMA(sum[0], ONES, ONES, ONES, ONES, v.x, X1(v)); \
    MMA(sum[0], ONES, ONES, ONES, ONES, X2(v), v.w); \
  }
#define DOT(c, i) c[0][i]
#define OF_SUMS(h) 0.0f
#define SUM_OF_X(h) sum[0][h]
#else
// Codes at different bits have separate sums.
#define CLASSES 2
#define ADD(c, words, i, j, v) \
  ADD_AT(c, 0, words.high.i, words.high.j, 0, v.x, X1(v)) \
  ADD_AT(c, 1, words.high.i, words.high.j, 4, X2(v), v.w)
#define ADD_ONES(v) { \
    MMA(sum[0], ONES, ONES, ONES, ONES, v.x, X1(v)); \
    MMA(sum[1], ONES, ONES, ONES, ONES, X2(v), v.w); \
  }
#define DOT(c, i) (LEVEL_SCALE(0) * c[0][i] + LEVEL_SCALE(4) * c[1][i])
#define OF_SUMS(h) (LEVEL_TERM(0) * sum[0][h] + LEVEL_TERM(4) * sum[1][h])
#define SUM_OF_X(h) (sum[0][h] + sum[1][h])
#endif
#endif
// Scales: those of the work-item's columns in k-block s, as they are stored. ADD_SCALED adds the
// sums of both columns.
#ifdef NESTED
// k-blocks per block of nested scales, as eight groups have columns.
#define OF_BLOCK (NESTED / 8)
// The row of words with the entries, of four, and that with the halves, which has those of two
// blocks if there are no minima.
#define ENTRY_ROW(s) ((s) % OF_BLOCK * 2 + 2 * t / E0M_PER_WORD)
#define SCALE_ROW(s, row) \
  pair_at[(E0M_HALF_ROWS(p.steps * PER / 256) + (s) / OF_BLOCK * E0M_WORDS + (row)) * step]
#ifdef MINIMA
#define HALVES_ROW(s) ((s) / OF_BLOCK)
#define HALVES_SHIFT(s) 0
#else
#define HALVES_ROW(s) ((s) / OF_BLOCK / 2)
#define HALVES_SHIFT(s) ((s) / OF_BLOCK % 2 * 16)
#endif
#ifdef SIX
typedef struct { uint4 halves, word, first, second; } Scales;
#define LOAD_SCALES(r, s) { \
    r.halves = pair_at[HALVES_ROW(s) * step]; \
    r.word = SCALE_ROW(s, min(ENTRY_ROW(s), 2u)); \
    if (ENTRY_ROW(s) == 3) { \
      r.first = SCALE_ROW(s, 0); \
      r.second = SCALE_ROW(s, 1); \
    } \
  }
#define ENTRY_WORD(r, s) (ENTRY_ROW(s) == 3 ? E0M_JOIN(r.first, r.second, r.word) : r.word)
#else
typedef struct { uint4 halves, word; } Scales;
#define LOAD_SCALES(r, s) { \
    r.halves = pair_at[HALVES_ROW(s) * step]; \
    r.word = SCALE_ROW(s, ENTRY_ROW(s)); \
  }
#define ENTRY_WORD(r, s) r.word
#endif
#define ADD_SCALED(r, s) { \
    uint4 halves = r.halves >> (uint)HALVES_SHIFT(s), word = ENTRY_WORD(r, s); \
    float4 d, m; \
    UNPACK_FOUR(d, m, halves) \
    _Pragma("unroll") for (uint h = 0; h < 2; h++) { \
      uint4 entry = word >> ((2 * t + h) % E0M_PER_WORD * ENTRY); \
      float4 scale, rest; \
      E0M_AFFINE(float4, scale, rest, d, m, entry) \
      ADD_COLUMN(h, scale, + E0M_WEIGHT(0.0f, scale, rest)) \
    } \
  }
#else
// Scale and bias are loaded once for two columns of the same group.
#define GROUP_BLOCKS (GROUP * SPAN / BLOCK)
#define PAIRS_EACH (GROUP_BLOCKS % 2 == 0 ? 1 : 2)
typedef struct { uint4 pairs[PAIRS_EACH]; } Scales;
#define LOAD_SCALES(r, s) { \
    _Pragma("unroll") for (uint h = 0; h < PAIRS_EACH; h++) \
      r.pairs[h] = pair_at[min((s) * BLOCKS_EACH + 2 * t + h, blocks - 1) / GROUP_BLOCKS * step]; \
  }
#define ADD_SCALED(r, s) { \
    _Pragma("unroll") for (uint h = 0; h < 2; h++) { \
      float4 scale, bias; \
      UNPACK_FOUR(scale, bias, r.pairs[h % PAIRS_EACH]) \
      ADD_COLUMN(h, scale, - scale * bias) \
    } \
  }
#endif
// Adds the sums of column h times a scale and the sum of x times a term.
#define ADD_COLUMN(h, scale, term) { \
    float of_x = SUM_OF_X(h), of_sums = OF_SUMS(h); \
    float4 sums = (float4)(DOT(low, h), DOT(low, 2 + h), DOT(high, h), DOT(high, 2 + h)) + of_sums; \
    total = total + scale * sums; \
    total = total + (term) * of_x; \
  }
// x that column g of the tensor cores takes of k-block s.
#define LOAD_X(v, s) { \
    uint block = (s) * BLOCKS_EACH + g / GROUPS; \
    bool takes = g / GROUPS < BLOCKS_EACH && block < blocks && g % GROUPS == OWN_GROUP; \
    v = takes ? x_words[block * 4 + t] : (XS)(0); \
  }

KERNEL {
  __local float4 part[WARPS * 8];
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
  float4 total = (float4)(0.0f);
  Codes words[BLOCKS_EACH];
  Scales own_scales;
  XS own_x;
  uint s = warp / SIDES;
  if (s < k_blocks) {
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) LOAD_CODES(words[b], BLOCK_OF(s) * 4 + t);
    LOAD_SCALES(own_scales, s)
  }
#ifdef HAS_GAIN
  __local uint4 row[DEPTH / 8];
  __local float squares[WARPS];
  __local const XS *x_words = (__local const XS *)row;
  uint4 held[VECTORS_PER_ITEM];
  float4 gains[VECTORS_PER_ITEM][2];
  float square = 0.0f, v[8];
  _Pragma("unroll") for (uint e = 0; e < VECTORS_PER_ITEM; e++) {
    uint i = lid + e * WG;
    held[e] = i < DEPTH / 8 ? x[i] : (uint4)(0);
    // Loaded with x, since after the barrier the work-group would wait for memory once more.
    gains[e][0] = gain_at4(i < DEPTH / 8 ? 2 * i : 0);
    gains[e][1] = gain_at4(i < DEPTH / 8 ? 2 * i + 1 : 1);
    UNPACK_EIGHT(v, held[e])
    _Pragma("unroll") for (uint c = 0; c < 8; c++) square += v[c] * v[c];
  }
  SUM_OF_WARP(square)
  if (lane == 0) squares[warp] = square;
  barrier(CLK_LOCAL_MEM_FENCE);
  square = 0.0f;
  for (uint w = 0; w < WARPS; w++) square += squares[w];
  float factor = rsqrt(square / (float)DEPTH + p.epsilon);
  _Pragma("unroll") for (uint e = 0; e < VECTORS_PER_ITEM; e++) {
    uint i = lid + e * WG;
    if (i < DEPTH / 8) {
      float4 low = gains[e][0] * factor, high = gains[e][1] * factor;
      UNPACK_EIGHT(v, held[e])
      uint4 normed;
      HALVES_OF(normed.x, v[0] * low.x, v[1] * low.y);
      HALVES_OF(normed.y, v[2] * low.z, v[3] * low.w);
      HALVES_OF(normed.z, v[4] * high.x, v[5] * high.y);
      HALVES_OF(normed.w, v[6] * high.z, v[7] * high.w);
#ifdef PER4
      row[i] = normed;
#else
      row[i] = normed.xzyw;
#endif
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#else
  __global const XS *x_words = (__global const XS *)x;
#endif
  if (s < k_blocks) LOAD_X(own_x, s)
  while (s < k_blocks) {
    uint after = s + WARPS / SIDES;
    bool more = after < k_blocks;
    float low[CLASSES][4], high[CLASSES][4], sum[CLASSES][4];
    for (uint c = 0; c < CLASSES; c++)
      for (uint e = 0; e < 4; e++) low[c][e] = high[c][e] = sum[c][e] = 0.0f;
    ADD_ONES(own_x)
    _Pragma("unroll") for (uint b = 0; b < BLOCKS_EACH; b++) {
      XS masked = g / GROUPS == b ? own_x : (XS)(0);
      ADD(low, words[b], x, y, masked)
      ADD(high, words[b], z, w, masked)
      if (more) LOAD_CODES(words[b], BLOCK_OF(after) * 4 + t);
    }
    ADD_SCALED(own_scales, s)
    if (more) {
      LOAD_SCALES(own_scales, after)
      LOAD_X(own_x, after)
    }
    s = after;
  }
  // Each of the four work-items of a column has the sums of other groups.
  float all[4] = {total.x, total.y, total.z, total.w};
  _Pragma("unroll") for (uint c = 0; c < 4; c++) {
    if (BLOCKS_EACH * GROUPS > 2) WARP_SUM(all[c], 1)
    if (BLOCKS_EACH * GROUPS > 4) WARP_SUM(all[c], 2)
  }
  if (t == 0) part[lid / 32 * 8 + g] = (float4)(all[0], all[1], all[2], all[3]);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < 16 && first + 2 * lid < p.n) {
    float2 v = (float2)(0.0f);
    for (uint w = 0; w < WARPS; w += SIDES) v += ((__local float2 *)part)[w * 16 + lid];
    uint c = column_at(p.column + first + 2 * lid, p);
#ifdef HAS_CODES2
    float2 u = (float2)(0.0f);
    for (uint w = 1; w < WARPS; w += 2) u += ((__local float2 *)part)[w * 16 + lid];
    y_put2(c / 2, v, u);
#else
    y_put2(c / 2, v);
#endif
  }
}
