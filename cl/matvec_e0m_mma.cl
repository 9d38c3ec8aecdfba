// y[column + j] = sum_k x[k] * w[k, j] for one row x of halves and an E0M weight of 4 or 8 bits, on matrix units. A work-group takes 32
// columns, each of its warps every so many stretches of weights; a work-item holds vectors of four columns, of which the next stretch is on its
// way while one is summed. The units multiply x by halves that w1 follows from by a factor and a term; with w = s * (w1 - b) the sums are scaled
// here: no weight is rounded. With FLAT the weight is one panel. With PARTS the columns up to end0, up to end1 and the rest are results of
// their own, from elements 0, start1 and start2 on.
#include "common/e0m"
#include "common/mma"
// Weights of a block: those that the four work-items of a column bring in a word each.
#define BLOCK (4 * PER)
#define EACH (GROUP / BLOCK)
#define WARPS (WG / 32)
// Pairs of neighbouring weights as halves, exact, where their codes stand after one shift at most: codes that begin at bit `from` of a half
// make 2 + (w1 - 2) / APART, from which W1 makes the sum over w1.
#define LEVELS(from) ((((1u << BITS) - 1u) << (from)) * 0x10001u)
#define PAIR(word, from) (((word) & LEVELS(from)) | 0x40004000u)
#define APART(from) ((float)(1 << (10 - BITS - (from))))
#define W1(from, dot, sum) (APART(from) * (dot) - (2.0f * APART(from) - 2.0f) * (sum))
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
#ifdef PER4
#define ADD(c, a, b, v) { MMA(c[0], PAIR(a, 0), PAIR(b, 0), PAIR((a) >> 8u, 0), PAIR((b) >> 8u, 0), v.x, v.y); }
#define ADD_ONES(c, v) { MMA(c[0], ONES, ONES, ONES, ONES, v.x, v.y); }
#define CLASSES 1
#define DOT(c, i) W1(0, c[0][i], sum[0][0])
#define ALL sum[0][0]
#else
// Codes of one place make a sum of their own.
#define ADD(c, a, b, v) { \
    MMA(c[0], PAIR(a, 0), PAIR(b, 0), PAIR((a) >> 8u, 0), PAIR((b) >> 8u, 0), v.x, v.z); \
    MMA(c[1], PAIR(a, 4), PAIR(b, 4), PAIR((a) >> 8u, 4), PAIR((b) >> 8u, 4), v.y, v.w); \
  }
#define ADD_ONES(c, v) { \
    MMA(c[0], ONES, ONES, ONES, ONES, v.x, v.z); \
    MMA(c[1], ONES, ONES, ONES, ONES, v.y, v.w); \
  }
#define CLASSES 2
#define DOT(c, i) (W1(0, c[0][i], sum[0][0]) + W1(4, c[1][i], sum[1][0]))
#define ALL (sum[0][0] + sum[1][0])
#endif
#define SCALED(v, word, dot) v += HALF_OF(word) * ((dot) - HALF_OF((word) >> 16u) * ALL)

KERNEL {
  __local float4 part[WARPS * 8];
  uint lid = get_local_id(0), lane = lid % 32, g = lane / 4, t = lane % 4;
  uint first = get_group_id(0) * 32, j = first + 4 * g;
  j = j < p.n ? j : 0;
  uint blocks = p.steps / 4, stretches = (blocks + EACH - 1) / EACH, step = p.panel / 4;
#ifdef FLAT
  __global const uint4 *word_at = codes + j / 4, *pair_at = scales + j / 4;
#else
  __global const uint4 *word_at = codes + (j / p.panel * p.steps * p.panel + j % p.panel) / 4;
  __global const uint4 *pair_at = scales + (j / p.panel * E0M_GROUPS(p.steps * PER) * p.panel + j % p.panel) / 4;
#endif
  __global const XS *x_words = (__global const XS *)x;
  float4 total = (float4)(0.0f);
  uint4 words[EACH], next_words[EACH], pair, next_pair;
  XS xs[EACH], next_xs[EACH];
  uint s = lid / 32;
  if (s < stretches) LOAD_STRETCH(words, xs, pair, s)
  while (s < stretches) {
    uint after = s + WARPS;
    if (after < stretches) LOAD_STRETCH(next_words, next_xs, next_pair, after)
    float low[CLASSES][4], high[CLASSES][4], sum[CLASSES][4];
    for (uint c = 0; c < CLASSES; c++)
      for (uint e = 0; e < 4; e++) low[c][e] = high[c][e] = sum[c][e] = 0.0f;
    _Pragma("unroll") for (uint b = 0; b < EACH; b++) {
      if (s * EACH + b >= blocks) break;
      ADD(low, words[b].x, words[b].y, xs[b])
      ADD(high, words[b].z, words[b].w, xs[b])
      ADD_ONES(sum, xs[b])
    }
    SCALED(total.x, pair.x, DOT(low, 0));
    SCALED(total.y, pair.y, DOT(low, 2));
    SCALED(total.z, pair.z, DOT(high, 0));
    SCALED(total.w, pair.w, DOT(high, 2));
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
