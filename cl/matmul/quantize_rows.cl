// Quantizes rows of x to signed bytes, words of y, in blocks of BLOCK elements; the last block of a
// row may be shorter. `factors` gets two numbers for each block: the factor of its bytes, and that
// factor times their sum. A work-item computes a block.
#define FOUR_VALUES(i) x_at4((from + (i)) / 4)
#include "common/bytes"

KERNEL {
  uint at = get_global_id(0), blocks = (p.k + BLOCK - 1) / BLOCK;
  if (at >= p.rows * blocks) return;
  uint first = at % blocks * BLOCK, from = at / blocks * p.k + first, count = min((uint)BLOCK, p.k - first);
  TO_BYTES(count, y, from / 4)
  factors[2 * at] = as_uint(scale);
  factors[2 * at + 1] = as_uint(scale * (float)sum);
}
