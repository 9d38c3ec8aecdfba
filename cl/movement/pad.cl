// y = x with b0 (innermost) to b4 elements inserted before its axes of m0 to m4 elements. The axes
// of the result have n0 to n3 elements and the rest. The padding is the nearest element (EDGE), the
// reflected elements (REFLECT), the repeated elements (WRAP), or else a value. A work-item writes
// two neighbouring results.
inline int source(int i, int n, bool *inside) {
  if (i >= 0 && i < n) return i;
#ifdef EDGE
  return clamp(i, 0, n - 1);
#else
#ifdef WRAP
  return (i % n + n) % n;
#else
#ifdef REFLECT
  int period = max(2 * (n - 1), 1), at = (i % period + period) % period;
  return min(at, period - at) % n;
#else
  *inside = false;
  return 0;
#endif
#endif
#endif
}

#define AXIS(n, m, b) \
  at += (uint)source((int)(rest % (n)) - (b), m, &inside) * step; \
  step *= (uint)(m); \
  rest /= (n);

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint rest = min(2 * pair + h, p.count - 1), at = 0, step = 1;
    bool inside = true;
    AXIS(p.n0, p.m0, p.b0)
    if (RANK > 1) { AXIS(p.n1, p.m1, p.b1) }
    if (RANK > 2) { AXIS(p.n2, p.m2, p.b2) }
    if (RANK > 3) { AXIS(p.n3, p.m3, p.b3) }
    if (RANK > 4) { AXIS(p.count, p.m4, p.b4) }
#ifdef HAS_VALUE
    v[h] = inside ? x_at(at) : value_at(0);
#else
    v[h] = inside ? x_at(at) : (ELEM)p.fill;
#endif
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
