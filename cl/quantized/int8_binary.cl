// y = a + b, a - b (SUB) or a * b (MUL) for bytes whose scales may differ, requantized to bytes. A
// work-item computes one word.
//
// Tables hold the term of each byte of a, then of b: integers with FIXED, otherwise floats,
// followed by the smallest float of each result. Operands may broadcast along the leading axis, and
// along all other axes but the last together.
#include "common/int8"

#ifdef MUL
#define COMBINED(s, t) ((s) * (t))
#else
#ifdef SUB
#define COMBINED(s, t) ((s) - (t))
#else
#define COMBINED(s, t) ((s) + (t))
#endif
#endif

inline int result(int a, int b, __global const uint *tables, const Params p) {
#ifdef FIXED
  int v = COMBINED(as_int(tables[a + 128]), as_int(tables[b + 384]));
  return within(multiplied(v, p.mantissa, p.shift), p.zero, p.low, p.high);
#else
  float v = COMBINED(as_float(tables[a + 128]), as_float(tables[b + 384]));
  int q = guess(v, p.inverse, p.zero, p.low, p.high);
  return settled(v, q, tables[least_of(q) + 512], tables[next_of(q) + 512]);
#endif
}

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, middle = row % p.inner, plane = row / p.inner;
  int4 u = four_bytes(a[word + middle * p.a_words + plane * p.a_rows]),
      v = four_bytes(b[word + middle * p.b_words + plane * p.b_rows]);
  y[i] = word_of((int4)(result(u.x, v.x, tables, p), result(u.y, v.y, tables, p), result(u.z, v.z, tables, p),
      result(u.w, v.w, tables, p)));
}
