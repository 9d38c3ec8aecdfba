// Softmax of rows of `channels` bytes, with scale 1/256 and zero point -128. The table holds the
// exponential of each difference from the largest element. A work-item computes one row.
#include "common/int8"
#define ENTRY(b) table[most - BYTE(x[at + (b) / 4u], (b) % 4u)]

KERNEL {
  uint row = get_global_id(0);
  if (row >= p.rows) return;
  uint at = row * p.words, sum = 0;
  int most = -128;
  for (uint c = 0; c < p.channels; c++) most = max(most, BYTE(x[at + c / 4u], c % 4u));
  for (uint c = 0; c < p.channels; c++) sum += ENTRY(c);
  for (uint i = 0; i < p.words; i++) {
    uint v = 0;
    for (uint b = 0; b < 4; b++) {
      uint c = 4 * i + b, share = c < p.channels ? (256u * ENTRY(c) + sum / 2u) / sum : 0u;
      v |= ((min(share, 255u) - 128u) & 255u) << (8u * b);
    }
    y[at + i] = v;
  }
}
