// y[i] = x[start + sum over parts of i of part * stride]; with `live`, start is read from there. A work-item copies two neighbouring results. The index is
// split by the sizes n1 (innermost) to n4 and the rest.
inline int walk(uint i, int start, Params p) {
  int at = start + (int)(i % p.n1) * p.s0;
  i /= p.n1;
  at += (int)(i % p.n2) * p.s1;
  i /= p.n2;
  at += (int)(i % p.n3) * p.s2;
  i /= p.n3;
  return at + (int)(i % p.n4) * p.s3 + (int)(i / p.n4) * p.s4;
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
