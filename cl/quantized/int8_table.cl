// Table lookup y = table[x + 128] for bytes. A work-item computes one word.
#include "common/int8"
#define ENTRY(b) BYTE(table[(v >> (8u * (b)) & 255u) / 4u], v >> (8u * (b)) & 3u)

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint v = x[i] ^ 0x80808080u;
  y[i] = word_of((int4)(ENTRY(0), ENTRY(1), ENTRY(2), ENTRY(3)));
}
