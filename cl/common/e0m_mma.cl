// k-blocks of E0M weights of 4 or 8 bits on tensor cores. A k-block consists of BLOCKS_EACH blocks
// with the same scales. Four work-items share a column of a block; each loads one word. With WHOLE,
// all k-blocks are full. With HAS_CODES2, every other warp multiplies by a second weight of the
// same size.
#define BLOCK (4 * PER)
#define BLOCKS_EACH (GROUP / BLOCK)
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
