// The rate of half precision. With PTX, the vectors of the eight chains are pairs of words, and the
// instruction is inline PTX.
#ifdef PTX
#define MAD(a) \
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a.x) : "r"(m), "r"(c)); \
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a.y) : "r"(m), "r"(c));
KERNEL {
  uint m = p.factor < 0.5f ? 0 : 0x3BFE3BFE, c = p.addend < 0.0f ? 0 : 0x14001400;
  uint2 a0 = (uint2)(get_global_id(0) & 0x03FF03FF), a1 = a0 + 1, a2 = a0 + 2, a3 = a0 + 3, a4 = a0 + 4, a5 = a0 + 5,
      a6 = a0 + 6, a7 = a0 + 7;
  for (uint i = 0; i < p.rounds; i++) {
    MAD(a0) MAD(a1) MAD(a2) MAD(a3) MAD(a4) MAD(a5) MAD(a6) MAD(a7)
  }
  a0 = a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7;
  y_put(get_global_id(0), (float)(a0.x ^ a0.y));
}
#else
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define REAL half
#include "common/chains"

KERNEL {
  y_put(get_global_id(0), chains((REAL)(get_global_id(0) & 7), (REAL)p.factor, (REAL)p.addend, p.rounds));
}
#endif
