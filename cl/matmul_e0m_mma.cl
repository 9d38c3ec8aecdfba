// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows of halves and an E0M weight of 4 or 8 bits, on matrix units. Blocks of x and of
// codes are copied to local memory, STAGES - 1 of them ahead; weights become halves in registers. The columns of a warp are dealt out so that a work-item reads
// codes of four neighbours as one vector, and stores eight neighbours of a row. With PARTS the columns up to end0, up to end1 and the rest are results
// of their own, from elements 0, start1 and start2 on.
#include "common/e0m"
#include "common/mma"
// Rows and columns of a work-group: WARPS_M x WARPS_N warps of TILES * 16 rows by 32 columns each.
#define TM (WARPS_M * TILES * 16)
#define TN (WARPS_N * 32)
#define BLOCK (4 * PER)
#define LEVELS ((((1u << BITS) - 1u) << (10 - BITS)) * 0x10001u)
#define LEVEL_PAIR(word, j) ((E0M_MOVE(word, (j) * BITS, 10 - BITS) & LEVELS) | 0x40004000u)
// Vectors of 16 bytes of a row of x in a block, copies of x and of codes in a stage, and work-items that bring codes.
#define CHUNKS (BLOCK / 8)
#define X_COPIES (TM * CHUNKS)
#define W_COPIES TN
#ifdef PER4
#define PAIRS 2
#else
#define PAIRS 4
#endif
// Neighbours along k of a work-item: PER halves of a row.
#ifdef PER4
#define XS uint2
#else
#define XS uint4
#endif

KERNEL {
  __local uint4 x_stage[STAGES * X_COPIES], w_stage[STAGES * W_COPIES];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint warp_m = lid / 32 % WARPS_M, warp_n = lid / 32 / WARPS_M;
  uint i0 = get_group_id(1) * TM, first = get_group_id(0) * TN, step = p.panel / 4;
  uint blocks = p.k / BLOCK, rows = p.k / PER, groups = E0M_GROUPS(p.k);
  // The columns that this work-item computes with, and whose scales it reads.
  uint j = first + warp_n * 32 + 4 * g;
  j = j < p.n ? j : 0;
  __global const uint4 *pair_at = scales + (j / p.panel * groups * p.panel + j % p.panel) / 4;
  uint x_to = LOCAL_ADDRESS(x_stage), w_to = LOCAL_ADDRESS(w_stage);
  float sum[TILES][4][4];
  for (uint i = 0; i < TILES; i++)
    for (uint c = 0; c < 4; c++)
      for (uint e = 0; e < 4; e++) sum[i][c][e] = 0.0f;

#define BRING(block, stage) { \
    for (uint e = lid; e < X_COPIES; e += WG) { \
      uint row = min(i0 + e / CHUNKS, p.m - 1); \
      COPY16(x_to + ((stage) * X_COPIES + e) * 16, x + (row * (p.k / 8) + (block) * CHUNKS + e % CHUNKS) * 2); \
    } \
    for (uint e = lid; e < W_COPIES; e += WG) { \
      /* Vector e / 4 of columns, row e % 4 of the block: so that a warp reads without conflict. */ \
      uint c = first + e / 4 * 4; \
      c = c < p.n ? c : 0; \
      COPY16(w_to + ((stage) * W_COPIES + e) * 16, \
             codes + ((c / p.panel * rows + (block) * 4 + e % 4) * p.panel + c % p.panel) / 4); \
    } \
  }
  _Pragma("unroll") for (uint b = 0; b < STAGES - 1; b++) {
    if (b < blocks) BRING(b, b)
    COPIES_END();
  }
  uint4 pair = pair_at[0];
  uint scale[4], bias[4];
  for (uint b = 0; b < blocks; b++) {
    if (b % (GROUP * SPAN / BLOCK) == 0) {
      uint each[4] = {pair.x, pair.y, pair.z, pair.w};
      for (uint c = 0; c < 4; c++) {
        scale[c] = (each[c] & 0xFFFFu) | (each[c] << 16u);
        bias[c] = (each[c] >> 16u) | (each[c] & 0xFFFF0000u);
      }
      uint after = b / (GROUP * SPAN / BLOCK) + 1;
      pair = pair_at[(after < groups ? after : 0) * step];
    }
    COPIES_WAIT(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    // The stage that was read before this barrier is free.
    if (b + STAGES - 1 < blocks) BRING(b + STAGES - 1, (b + STAGES - 1) % STAGES)
    COPIES_END();
    uint4 word = w_stage[b % STAGES * W_COPIES + warp_n * 32 + lane];
    uint each[4] = {word.x, word.y, word.z, word.w};
    uint w[4][PAIRS];
    _Pragma("unroll") for (uint c = 0; c < 4; c++) {
      uint levels[4] = {LEVEL_PAIR(each[c], 0), LEVEL_PAIR(each[c], 1), LEVEL_PAIR(each[c], 2 % PAIRS), LEVEL_PAIR(each[c], 3 % PAIRS)};
      _Pragma("unroll") for (uint e = 0; e < PAIRS; e++) {
        uint d;
        HALVES_SUB(d, levels[e], bias[c]);
        HALVES_MUL(w[c][e], d, scale[c]);
      }
    }
    __local const XS *xs = (__local const XS *)(x_stage + b % STAGES * X_COPIES) + (warp_m * TILES * 16 + g) * 4 + t;
    _Pragma("unroll") for (uint i = 0; i < TILES; i++) {
      XS upper = xs[i * 64], lower = xs[i * 64 + 32];
      _Pragma("unroll") for (uint c = 0; c < 4; c++) MMA(sum[i][c], upper.x, lower.x, upper.y, lower.y, w[c][0], w[c][1]);
#ifndef PER4
      _Pragma("unroll") for (uint c = 0; c < 4; c++) MMA(sum[i][c], upper.z, lower.z, upper.w, lower.w, w[c][2], w[c][3]);
#endif
    }
  }
  _Pragma("unroll") for (uint i = 0; i < TILES; i++) {
    _Pragma("unroll") for (uint h = 0; h < 4; h++) {
      uint row = i0 + (warp_m * TILES + i) * 16 + g + h / 2 * 8, c = first + warp_n * 32 + 8 * t + h % 2 * 4;
      if (row >= p.m || c >= p.n) continue;
      float4 v = (float4)(sum[i][0][h], sum[i][1][h], sum[i][2][h], sum[i][3][h]);
      c += p.column;
      uint at = row * p.y_stride + c;
#ifdef PARTS
      uint from = c < p.end0 ? 0 : c < p.end1 ? p.end0 : p.end1, to = c < p.end0 ? p.end0 : c < p.end1 ? p.end1 : p.y_stride;
      uint start = c < p.end0 ? 0 : c < p.end1 ? p.start1 : p.start2;
      at = start + row * (to - from) + c - from;
#endif
      y_put4(at / 4, v);
    }
  }
}
