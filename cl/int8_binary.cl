// y = a + b, a - b (SUB) or a * b (MUL) for bytes with scales of their own, rounded to bytes. Operands may be repeated along the leading axis and
// along all others but the last. A work-item computes one word.
#include "common/int8"
#define HEADROOM 20

inline int result(int a, int b, const Params p) {
  int u = a - p.a_zero, v = b - p.b_zero;
#ifdef MUL
  int sum = u * v;
#else
  int s = multiplied(u << HEADROOM, p.a_mantissa, p.a_shift), t = multiplied(v << HEADROOM, p.b_mantissa, p.b_shift);
#ifdef SUB
  int sum = s - t;
#else
  int sum = s + t;
#endif
#endif
  return within(multiplied(sum, p.mantissa, p.shift), p.zero, p.low, p.high);
}

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, middle = row % p.inner, plane = row / p.inner;
  uint u = a[word + middle * p.a_words + plane * p.a_rows], v = b[word + middle * p.b_words + plane * p.b_rows];
  int4 r = (int4)(result(BYTE(u, 0), BYTE(v, 0), p), result(BYTE(u, 1), BYTE(v, 1), p), result(BYTE(u, 2), BYTE(v, 2), p),
                  result(BYTE(u, 3), BYTE(v, 3), p));
  y[i] = word_of(r);
}
