// k-blocks of E0M weights of 4 or 8 bits on tensor cores: EACH blocks with the same scales, of which
// the four work-items of a column load a word each. With WHOLE all k-blocks are full. With
// HAS_CODES2 every other warp takes a second weight of the same size.
#define BLOCK (4 * PER)
#define EACH (GROUP / BLOCK)
#define WARPS (WG / 32)
#ifdef HAS_CODES2
#define SIDES 2
#else
#define SIDES 1
#endif
// Neighbours along k of a work-item: PER halves of a row.
#ifdef PER4
#define XS uint2
#else
#define XS uint4
#endif
// Block `b` of k-block s of a weight with `blocks` of them, and whether it is behind the last one.
#ifdef WHOLE
#define BLOCK_OF(s) ((s) * EACH + b)
#define ENDS(s) false
#else
#define BLOCK_OF(s) ((s) * EACH + b < blocks ? (s) * EACH + b : 0)
#define ENDS(s) ((s) * EACH + b >= blocks)
#endif
