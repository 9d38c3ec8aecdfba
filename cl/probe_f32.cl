// Rounds of multiply-adds in single precision: eight chains of vectors, of 16 elements with WIDE and of four else, in each work-item, which
// writes the sum of one.
#ifdef WIDE
#define VECTOR float16
#else
#define VECTOR float4
#endif
KERNEL {
  float start = (float)get_global_id(0);
  VECTOR m = (VECTOR)(p.factor), c = (VECTOR)(p.addend);
  VECTOR a0 = (VECTOR)(start), a1 = a0 + 1.0f, a2 = a0 + 2.0f, a3 = a0 + 3.0f;
  VECTOR a4 = a0 + 4.0f, a5 = a0 + 5.0f, a6 = a0 + 6.0f, a7 = a0 + 7.0f;
  for (uint i = 0; i < p.rounds; i++) {
    a0 = mad(a0, m, c);
    a1 = mad(a1, m, c);
    a2 = mad(a2, m, c);
    a3 = mad(a3, m, c);
    a4 = mad(a4, m, c);
    a5 = mad(a5, m, c);
    a6 = mad(a6, m, c);
    a7 = mad(a7, m, c);
  }
  a0 = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;
#ifdef WIDE
  float8 half_sum = a0.lo + a0.hi;
  float4 sum = half_sum.lo + half_sum.hi;
#else
  float4 sum = a0;
#endif
  y_put(get_global_id(0), sum.x + sum.y + sum.z + sum.w);
}
