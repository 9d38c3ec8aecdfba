// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight of 4 or 8 bits, on matrix units. A work-group takes 32
// columns, each of its warps every so many stretches of weights; a work-item holds vectors of four columns, of which the next stretch is on its
// way while one is summed. The units multiply w1, which is exact in a half, by x; with w = s * (w1 - b) the sums are scaled here: no weight
// is rounded. With PARTS the columns up to end0, up to end1 and the rest are results of their own, from elements 0, start1 and start2 on.
#include "common/e0m"
#include "common/mma"
// Weights of a block: those that the four work-items of a column bring in a word each.
#define BLOCK (4 * PER)
#define EACH (GROUP / BLOCK)
#define WARPS (WG / 32)
#define LEVELS ((((1u << BITS) - 1u) << (10 - BITS)) * 0x10001u)
// Two neighbouring weights as halves: w1 is exact in one.
#define LEVEL_PAIR(word, j) ((E0M_MOVE(word, (j) * BITS, 10 - BITS) & LEVELS) | 0x40004000u)
#define HALF_OF(h) (as_float((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)
#define ONES 0x3C003C00u
#ifdef PER4
#define XS uint2
#else
#define XS uint4
#endif
#define LOAD_STRETCH(words, xs, pair, s) { \
    _Pragma("unroll") for (uint b = 0; b < EACH; b++) { \
      uint block = (s) * EACH + b; \
      block = block < blocks ? block : 0; \
      words[b] = word_at[(block * 4 + t) * step]; \
      xs[b] = x_words[block * 4 + t]; \
    } \
    pair = pair_at[(s) / SPAN * step]; \
  }
#define SCALED(v, word, dot) v += HALF_OF(word) * ((dot) - HALF_OF((word) >> 16u) * sum[0])

KERNEL {
  __local float4 part[WARPS * 8];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint first = get_group_id(0) * 32, j = first + 4 * g;
  j = j < p.n ? j : 0;
  uint blocks = p.steps / 4, stretches = (blocks + EACH - 1) / EACH, step = p.panel / 4;
  __global const uint4 *word_at = codes + (j / p.panel * p.steps * p.panel + j % p.panel) / 4;
  __global const uint4 *pair_at = scales + (j / p.panel * E0M_GROUPS(p.steps * PER) * p.panel + j % p.panel) / 4;
  __global const XS *x_words = (__global const XS *)x;
  float4 total = (float4)(0.0f);
  uint4 words[EACH], next_words[EACH], pair, next_pair;
  XS xs[EACH], next_xs[EACH];
  uint s = lid / 32;
  if (s < stretches) LOAD_STRETCH(words, xs, pair, s)
  while (s < stretches) {
    uint after = s + WARPS;
    if (after < stretches) LOAD_STRETCH(next_words, next_xs, next_pair, after)
    float low[4] = {0.0f, 0.0f, 0.0f, 0.0f}, high[4] = {0.0f, 0.0f, 0.0f, 0.0f}, sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    _Pragma("unroll") for (uint b = 0; b < EACH; b++) {
      if (s * EACH + b >= blocks) break;
      uint4 w = words[b];
      XS v = xs[b];
      MMA(low, LEVEL_PAIR(w.x, 0), LEVEL_PAIR(w.y, 0), LEVEL_PAIR(w.x, 1), LEVEL_PAIR(w.y, 1), v.x, v.y);
      MMA(high, LEVEL_PAIR(w.z, 0), LEVEL_PAIR(w.w, 0), LEVEL_PAIR(w.z, 1), LEVEL_PAIR(w.w, 1), v.x, v.y);
      MMA(sum, ONES, ONES, ONES, ONES, v.x, v.y);
#ifndef PER4
      MMA(low, LEVEL_PAIR(w.x, 2), LEVEL_PAIR(w.y, 2), LEVEL_PAIR(w.x, 3), LEVEL_PAIR(w.y, 3), v.z, v.w);
      MMA(high, LEVEL_PAIR(w.z, 2), LEVEL_PAIR(w.w, 2), LEVEL_PAIR(w.z, 3), LEVEL_PAIR(w.w, 3), v.z, v.w);
      MMA(sum, ONES, ONES, ONES, ONES, v.z, v.w);
#endif
    }
    SCALED(total.x, pair.x, low[0]);
    SCALED(total.y, pair.y, low[2]);
    SCALED(total.z, pair.z, high[0]);
    SCALED(total.w, pair.w, high[2]);
    _Pragma("unroll") for (uint b = 0; b < EACH; b++) {
      words[b] = next_words[b];
      xs[b] = next_xs[b];
    }
    pair = next_pair;
    s = after;
  }
  if (t == 0) part[lid / 32 * 8 + g] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < 16 && first + 2 * lid < p.n) {
    float2 v = (float2)(0.0f);
    for (uint w = 0; w < WARPS; w++) v += ((__local float2 *)part)[w * 16 + lid];
    uint c = p.column + first + 2 * lid;
#ifdef PARTS
    c += c < p.end0 ? 0 : c < p.end1 ? p.start1 - p.end0 : p.start2 - p.end1;
#endif
    y_put2(c / 2, v);
  }
}
