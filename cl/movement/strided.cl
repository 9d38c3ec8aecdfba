// y[i] = x[start + sum over parts of i of part * stride]; with HAS_LIVE, start is read from `live`.
// The index is split into RANK parts, of sizes n1 (innermost) to n5 and the rest. A work-item
// copies two neighbouring results.
#define PART(rank, n, s) \
  if (RANK == rank) return at + (int)i * s; \
  at += (int)(i % n) * s; \
  i /= n;

inline int walk(uint i, int start, Params p) {
  int at = start;
  PART(1, p.n1, p.s0)
  PART(2, p.n2, p.s1)
  PART(3, p.n3, p.s2)
  PART(4, p.n4, p.s3)
  PART(5, p.n5, p.s4)
  return at + (int)i * p.s5;
}

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
#ifdef HAS_LIVE
  int start = live_at((uint)p.start);
#else
  int start = p.start;
#endif
  y_put2(pair, (ELEM2)(x_at(walk(2 * pair, start, p)), x_at(walk(min(2 * pair + 1, p.count - 1), start, p))));
}
