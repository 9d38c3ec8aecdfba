// k-blocks of E0M weights on tensor cores. A k-block consists of BLOCKS_EACH blocks; if that is not
// defined, they have the same scales. Four work-items share a column of a block; each loads a word
// of each plane. With WHOLE, all k-blocks are full. With HAS_CODES2, every other warp multiplies by
// a second weight of the same size.
#define BLOCK (4 * PER)
#ifndef BLOCKS_EACH
#define BLOCKS_EACH (GROUP / BLOCK)
#endif
#define WARPS (WG / 32)
#ifdef HAS_CODES2
#define SIDES 2
#else
#define SIDES 1
#endif
// PER halves of a row of x, adjacent along k, that a work-item loads at once.
#ifdef PER4
#define XS uint2
#else
#define XS uint4
#endif
// Block `b` of k-block s in a weight of `blocks` blocks, and whether it is beyond the last one.
#ifdef WHOLE
#define BLOCK_OF(s) ((s) * BLOCKS_EACH + b)
#define IS_BEYOND_END(s) false
#else
#define BLOCK_OF(s) ((s) * BLOCKS_EACH + b < blocks ? (s) * BLOCKS_EACH + b : 0)
#define IS_BEYOND_END(s) ((s) * BLOCKS_EACH + b >= blocks)
#endif
// The words of four columns, and loading those of step i. Those of planes are shifted where they
// are used, so that no load is waited for.
#ifdef LOW
typedef struct { uint4 high, low; } Codes;
#define LOAD_CODES(codes, i) { \
    codes.high = word_at[E0M_ROW(i, HIGH, 0) * step]; \
    codes.low = word_at[E0M_ROW(i, LOW, HIGH) * step]; \
  }
#define LOW_WORDS(codes) (codes.low >> (uint)E0M_SHIFT(t, LOW))
#else
typedef struct { uint4 high; } Codes;
#ifdef HIGH
#define LOAD_CODES(codes, i) codes.high = word_at[E0M_ROW(i, HIGH, 0) * step]
#else
#define LOAD_CODES(codes, i) codes.high = word_at[(i) * step]
#endif
#define LOW_WORDS(codes) codes.high
#endif
#ifdef HIGH
#define HIGH_WORDS(codes) (codes.high >> (uint)E0M_SHIFT(t, HIGH))
#else
#define HIGH_WORDS(codes) codes.high
#endif
// Groups of a block. Work-item t has weights of one of them.
#ifdef NESTED
#define GROUPS (NESTED / 8)
#else
#define GROUPS 1
#endif
#define OWN_GROUP (t / (4 / GROUPS))

// Pairs of neighbouring weights as exact halves, after at most one shift: codes that begin at bit
// `from` of a half become 2 + (w1 - 2) / LEVEL_SCALE. So w1 is LEVEL_SCALE times them, plus
// LEVEL_TERM.
#define LEVELS(from) ((((1u << BITS) - 1u) << (from)) * 0x10001u)
#define PAIR(d, word, from) \
  uint d; \
  MASKED_OR(d, word, LEVELS(from), 0x40004000u);
#define LEVEL_SCALE(from) ((float)(1 << (10 - BITS - (from))))
#define LEVEL_TERM(from) (2.0f - 2.0f * LEVEL_SCALE(from))
#define ONES 0x3C003C00u

// Pairs of halves as floats: eight, and the low and the high ones of four.
#define UNPACK_EIGHT(v, words) \
  FLOATS_OF(v[0], v[1], words.x); \
  FLOATS_OF(v[2], v[3], words.y); \
  FLOATS_OF(v[4], v[5], words.z); \
  FLOATS_OF(v[6], v[7], words.w);
#define UNPACK_FOUR(low, high, words) \
  FLOATS_OF(low.x, high.x, words.x); \
  FLOATS_OF(low.y, high.y, words.y); \
  FLOATS_OF(low.z, high.z, words.z); \
  FLOATS_OF(low.w, high.w, words.w);
#define SUM_OF_WARP(v) \
  WARP_SUM(v, 16) \
  WARP_SUM(v, 8) \
  WARP_SUM(v, 4) \
  WARP_SUM(v, 2) \
  WARP_SUM(v, 1)
