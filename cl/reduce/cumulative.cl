// y[c] = the sum, or with PRODUCT the product, of the elements up to c of an axis of `cols`
// elements, which are `inner` apart. With EXCLUSIVE, element c itself does not count. With REVERSE,
// the elements are taken from the end. A work-item computes one line along the axis.
#ifdef PRODUCT
#define START 1
#define JOIN(a, b) ((a) * (b))
#else
#define START 0
#define JOIN(a, b) ((a) + (b))
#endif

KERNEL {
  uint line = get_global_id(0);
  if (line >= p.lines) return;
  uint base = line / p.inner * p.cols * p.inner + line % p.inner;
  ELEM s = START;
  for (uint i = 0; i < p.cols; i++) {
#ifdef REVERSE
    uint at = base + (p.cols - 1 - i) * p.inner;
#else
    uint at = base + i * p.inner;
#endif
    ELEM next = JOIN(s, x_at(at));
#ifdef EXCLUSIVE
    y_put(at, s);
#else
    y_put(at, next);
#endif
    s = next;
  }
}
