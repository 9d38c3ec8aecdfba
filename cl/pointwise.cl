// y = apply(a, b, ...) over broadcast operands. A work-item computes two neighbouring results. The result index
// is split by the sizes n1 (innermost) to n4 and the rest; each operand has a stride for each part.
inline uint walk(uint i, uint n1, uint n2, uint n3, uint n4, uint s0, uint s1, uint s2, uint s3, uint s4) {
#ifdef FLAT
  return i;
#else
#ifdef RANK2
  return (i % n1) * s0 + (i / n1) * s1;
#else
  uint at = (i % n1) * s0;
  i /= n1;
  at += (i % n2) * s1;
  i /= n2;
  at += (i % n3) * s2;
  i /= n3;
  return at + (i % n4) * s3 + (i / n4) * s4;
#endif
#endif
}

#define AT(x, i) x##_at(walk(i, p.n1, p.n2, p.n3, p.n4, p.x##0, p.x##1, p.x##2, p.x##3, p.x##4))
#ifdef HAS_D
#define APPLY(i) apply(AT(a, i), AT(b, i), AT(c, i), AT(d, i))
#else
#ifdef HAS_C
#define APPLY(i) apply(AT(a, i), AT(b, i), AT(c, i))
#else
#ifdef HAS_B
#define APPLY(i) apply(AT(a, i), AT(b, i))
#else
#define APPLY(i) apply(AT(a, i))
#endif
#endif
#endif

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  // An odd last pair computes its first element twice: reading past the operands is never needed.
  uint last = min(2 * pair + 1, p.count - 1);
  Y first = APPLY(2 * pair), second = APPLY(last);
  y_put2(pair, (Y2)(first, second));
}
