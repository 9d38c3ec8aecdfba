// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows of halves and an E0M weight of 4 or 8 bits, on matrix units. Blocks of x and of
// codes are copied to local memory, STAGES - 1 of them ahead; weights become halves in registers. The columns of a warp are dealt out so that a work-item reads
// codes of four neighbours as one vector, and stores eight neighbours of a row. WARPS_K warps share the sums of the same rows and columns: each takes
// every so many blocks of them, and a stage holds a block for each. With PARTS the columns up to end0, up to end1 and the rest are results
// of their own, from elements 0, start1 and start2 on.
#include "common/e0m"
#include "common/parts"
#include "common/mma"
// Rows and columns of a work-group: WARPS_M x WARPS_N warps of TILES * 16 rows by 32 columns each.
#define TM (WARPS_M * TILES * 16)
#define TN (WARPS_N * 32)
#define TILE_ITEMS (WARPS_M * WARPS_N * 32)
#define BLOCK (4 * PER)
#define LEVELS ((((1u << BITS) - 1u) << (10 - BITS)) * 0x10001u)
#define LEVEL_PAIR(d, word, j) MASKED_OR(d, E0M_MOVE(word, (j) * BITS, 10 - BITS), LEVELS, 0x40004000u)
#define GROUP_BLOCKS (GROUP * SPAN / BLOCK)
// Vectors of 16 bytes of a row of x in a block, copies of x and of codes in a block, and all of a stage.
#define CHUNKS (BLOCK / 8)
#define X_COPIES (TM * CHUNKS)
#define W_COPIES TN
#define COPIES (WARPS_K * (X_COPIES + W_COPIES))
// With SHARED_SUMS, which block of a stage a copy is for and its number there; the last stage may have fewer blocks.
#ifdef SHARED_SUMS
#define SLICE(e, copies) ((e) / (copies))
#define WITHIN(e, copies) ((e) % (copies))
#define WHERE_LIVE(block) if ((block) < blocks)
// Where stages were the sums lie at the end, of half the warps that share them.
#define SUMS (WARPS_K / 2 * TILES * 4 * TILE_ITEMS)
#define ROOM (STAGES * COPIES > SUMS ? STAGES * COPIES : SUMS)
#else
#define ROOM (STAGES * COPIES)
#define SLICE(e, copies) 0
#define WITHIN(e, copies) (e)
#define WHERE_LIVE(block)
#endif
#ifdef PER4
#define PAIRS 2
#else
#define PAIRS 4
#endif
// A row that is there, for one that may lie behind the last. Another one for each, from the first on (numbers wrap): all work-groups copy at a time, and the
// same few bytes, were it the last row, come from one place of the cache.
#define STAND_IN(row) min(min((row), (row) - p.m), p.m - 1)
// Neighbours along k of a work-item: PER halves of a row.
#ifdef PER4
#define XS uint2
#else
#define XS uint4
#endif

KERNEL {
  __local uint4 stages[ROOM];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint warp_m = lid / 32 % WARPS_M, warp_n = lid / 32 / WARPS_M % WARPS_N, warp_k = lid / TILE_ITEMS;
  uint i0 = get_group_id(1) * TM, first = get_group_id(0) * TN, step = p.panel / 4;
  uint blocks = p.k / BLOCK, rows = p.k / PER, groups = E0M_GROUPS(p.k);
  // The columns that this work-item computes with, and whose scales it reads.
  uint j = first + warp_n * 32 + 4 * g;
  j = j < p.n ? j : 0;
  __global const uint4 *pair_at = scales + (j / p.panel * groups * p.panel + j % p.panel) / 4;
  uint to = LOCAL_ADDRESS(stages);
  float sum[TILES][4][4];
  for (uint i = 0; i < TILES; i++)
    for (uint c = 0; c < 4; c++)
      for (uint e = 0; e < 4; e++) sum[i][c][e] = 0.0f;

  // Blocks of x of a stage lie before its blocks of codes.
#define BRING(step, stage) { \
    for (uint e = lid; e < WARPS_K * X_COPIES; e += WG) { \
      uint row = STAND_IN(i0 + WITHIN(e, X_COPIES) / CHUNKS), block = (step) * WARPS_K + SLICE(e, X_COPIES); \
      WHERE_LIVE(block) COPY16(to + ((stage) * COPIES + e) * 16, x + (row * (p.k / 8) + block * CHUNKS + e % CHUNKS) * 2); \
    } \
    for (uint e = lid; e < WARPS_K * W_COPIES; e += WG) { \
      /* Vector e / 4 of columns, row e % 4 of the block: so that a warp reads without conflict. */ \
      uint c = first + WITHIN(e, W_COPIES) / 4 * 4, block = (step) * WARPS_K + SLICE(e, W_COPIES); \
      c = c < p.n ? c : 0; \
      WHERE_LIVE(block) \
        COPY16(to + ((stage) * COPIES + WARPS_K * X_COPIES + e) * 16, \
               codes + ((c / p.panel * rows + block * 4 + e % 4) * p.panel + c % p.panel) / 4); \
    } \
  }
  uint steps = (blocks + WARPS_K - 1) / WARPS_K;
  _Pragma("unroll") for (uint b = 0; b < STAGES - 1; b++) {
    if (b < steps) BRING(b, b)
    COPIES_END();
  }
#ifdef SHARED_SUMS
  uint4 pair = pair_at[warp_k < blocks ? warp_k / GROUP_BLOCKS * step : 0];
  uint group = groups;
#else
  uint4 pair = pair_at[0];
#endif
  uint scale[4], bias[4];
  for (uint b = 0; b < steps; b++) {
    uint block = b * WARPS_K + warp_k;
#ifdef SHARED_SUMS
    if (block / GROUP_BLOCKS != group) {
      group = block / GROUP_BLOCKS;
      // The group of this warp's first block behind this one.
      uint next = ((group + 1) * GROUP_BLOCKS - block + WARPS_K - 1) / WARPS_K * WARPS_K + block;
      uint after = next < blocks ? next / GROUP_BLOCKS : 0;
#else
    if (b % GROUP_BLOCKS == 0) {
      uint after = b / GROUP_BLOCKS + 1;
      after = after < groups ? after : 0;
#endif
      uint each[4] = {pair.x, pair.y, pair.z, pair.w};
      for (uint c = 0; c < 4; c++) {
        scale[c] = (each[c] & 0xFFFFu) | (each[c] << 16u);
        bias[c] = (each[c] >> 16u) | (each[c] & 0xFFFF0000u);
      }
      pair = pair_at[after * step];
    }
    COPIES_WAIT(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    // The stage that was read before this barrier is free.
    if (b + STAGES - 1 < steps) BRING(b + STAGES - 1, (b + STAGES - 1) % STAGES)
    COPIES_END();
#ifdef SHARED_SUMS
    if (block >= blocks) continue;
#endif
    __local const uint4 *own = stages + b % STAGES * COPIES;
    uint4 word = own[WARPS_K * X_COPIES + warp_k * W_COPIES + warp_n * 32 + lane];
    uint each[4] = {word.x, word.y, word.z, word.w};
    uint w[4][PAIRS];
    _Pragma("unroll") for (uint c = 0; c < 4; c++) {
      _Pragma("unroll") for (uint e = 0; e < PAIRS; e++) {
        uint level, d;
        LEVEL_PAIR(level, each[c], e);
        HALVES_SUB(d, level, bias[c]);
        HALVES_MUL(w[c][e], d, scale[c]);
      }
    }
    __local const XS *xs = (__local const XS *)(own + warp_k * X_COPIES) + (warp_m * TILES * 16 + g) * 4 + t;
    _Pragma("unroll") for (uint i = 0; i < TILES; i++) {
      XS upper = xs[i * 64], lower = xs[i * 64 + 32];
      _Pragma("unroll") for (uint c = 0; c < 4; c++) MMA(sum[i][c], upper.x, lower.x, upper.y, lower.y, w[c][0], w[c][1]);
#ifndef PER4
      _Pragma("unroll") for (uint c = 0; c < 4; c++) MMA(sum[i][c], upper.z, lower.z, upper.w, lower.w, w[c][2], w[c][3]);
#endif
    }
  }
#ifdef SHARED_SUMS
  // The upper half of the warps that share sums hands them to the lower one, again and again.
  __local float4 *sums = (__local float4 *)stages + lid % TILE_ITEMS;
  COPIES_WAIT(0);
  _Pragma("unroll") for (uint half_of = WARPS_K / 2; half_of > 0; half_of /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp_k >= half_of && warp_k < 2 * half_of)
      _Pragma("unroll") for (uint i = 0; i < TILES; i++)
        _Pragma("unroll") for (uint c = 0; c < 4; c++)
          sums[((warp_k - half_of) * TILES * 4 + i * 4 + c) * TILE_ITEMS] = (float4)(sum[i][c][0], sum[i][c][1], sum[i][c][2], sum[i][c][3]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (warp_k < half_of)
      _Pragma("unroll") for (uint i = 0; i < TILES; i++)
        _Pragma("unroll") for (uint c = 0; c < 4; c++) {
          float4 v = sums[(warp_k * TILES * 4 + i * 4 + c) * TILE_ITEMS];
          sum[i][c][0] += v.x;
          sum[i][c][1] += v.y;
          sum[i][c][2] += v.z;
          sum[i][c][3] += v.w;
        }
  }
  if (warp_k > 0) return;
#endif
  _Pragma("unroll") for (uint i = 0; i < TILES; i++) {
    _Pragma("unroll") for (uint h = 0; h < 4; h++) {
      uint row = i0 + (warp_m * TILES + i) * 16 + g + h / 2 * 8, c = first + warp_n * 32 + 8 * t + h % 2 * 4;
      if (row >= p.m || c >= p.n) continue;
      float4 v = (float4)(sum[i][0][h], sum[i][1][h], sum[i][2][h], sum[i][3][h]);
      y_put4(result_at(row, p.column + c, p.y_stride, p) / 4, v);
    }
  }
}
