// Rounds of multiply-adds in half precision: eight chains of vectors, of 16 elements with WIDE and of four else, in each work-item, which
// writes the sum of one. With PTX the vectors are pairs of words, and the instruction is written out.
#ifdef PTX
#define MAD(a) \
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a.x) : "r"(m), "r"(c)); \
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a.y) : "r"(m), "r"(c));
KERNEL {
  uint m = p.factor < 0.5f ? 0 : 0x3BFE3BFE, c = p.addend < 0.0f ? 0 : 0x14001400;
  uint2 a0 = (uint2)(get_global_id(0) & 0x03FF03FF), a1 = a0 + 1, a2 = a0 + 2, a3 = a0 + 3, a4 = a0 + 4, a5 = a0 + 5, a6 = a0 + 6, a7 = a0 + 7;
  for (uint i = 0; i < p.rounds; i++) {
    MAD(a0) MAD(a1) MAD(a2) MAD(a3) MAD(a4) MAD(a5) MAD(a6) MAD(a7)
  }
  a0 = a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7;
  y_put(get_global_id(0), (float)(a0.x ^ a0.y));
}
#else
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#ifdef WIDE
#define VECTOR half16
#else
#define VECTOR half4
#endif
KERNEL {
  half start = (half)(get_global_id(0) & 7);
  VECTOR m = (VECTOR)((half)p.factor), c = (VECTOR)((half)p.addend), one = (VECTOR)((half)1.0f);
  VECTOR a0 = (VECTOR)(start), a1 = a0 + one, a2 = a1 + one, a3 = a2 + one, a4 = a3 + one, a5 = a4 + one, a6 = a5 + one, a7 = a6 + one;
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
  half8 half_sum = a0.lo + a0.hi;
  half4 sum = half_sum.lo + half_sum.hi;
#else
  half4 sum = a0;
#endif
  y_put(get_global_id(0), (float)(sum.x + sum.y + sum.z + sum.w));
}
#endif
