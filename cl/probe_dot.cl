// Rounds of dot products of four pairs of signed 8-bit integers, packed in words: eight chains in each work-item, which writes the sum of
// all. PTX, KHR or ARM: how the driver has them; X86_BYTES: as products of matrices take DOT_STEPS words of sixteen columns.
#ifdef PTX
#define DOT(a) asm("dp4a.s32.s32 %0, %0, %1, %0;" : "+r"(a) : "r"(m))
#endif
#ifdef KHR
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#define DOT(a) a += dot_4x8packed_ss_int((uint)a, m)
#endif
#ifdef ARM
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
#define DOT(a) a = arm_dot_acc(as_char4(a), as_char4(m), a)
#endif
#ifdef X86_BYTES
#define COLS 16
#include "common/dot"
#define INT int16
#define STEP(t) sums = DOT(sums, words, m + t);
#define CHAIN(a) { \
    uint16 words = as_uint16(a); \
    PARTIAL sums = (PARTIAL)(0); \
    STEP(0) STEP(1) STEP(2) STEP(3) \
    a += WIDEN(sums); \
  }
#define LANE(a) (a).s0
#else
#define INT int
#define CHAIN(a) DOT(a);
#define LANE(a) (a)
#endif

KERNEL {
  uint m = p.factor;
  INT a0 = (INT)((int)get_global_id(0)), a1 = a0 + 1, a2 = a0 + 2, a3 = a0 + 3, a4 = a0 + 4, a5 = a0 + 5, a6 = a0 + 6, a7 = a0 + 7;
  for (uint i = 0; i < p.rounds; i++) {
    CHAIN(a0) CHAIN(a1) CHAIN(a2) CHAIN(a3) CHAIN(a4) CHAIN(a5) CHAIN(a6) CHAIN(a7)
  }
  y_put(get_global_id(0), (float)LANE(a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7));
}
