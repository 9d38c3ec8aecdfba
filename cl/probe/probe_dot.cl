// Rounds of dot products of four pairs of signed 8-bit integers, packed in words. Each work-item
// has eight chains and writes their sum.
//
// PTX, KHR or ARM: the form of the driver's instruction.
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

KERNEL {
  uint m = p.factor;
  int a0 = (int)get_global_id(0), a1 = a0 + 1, a2 = a0 + 2, a3 = a0 + 3, a4 = a0 + 4, a5 = a0 + 5, a6 = a0 + 6,
      a7 = a0 + 7;
  for (uint i = 0; i < p.rounds; i++) {
    DOT(a0); DOT(a1); DOT(a2); DOT(a3); DOT(a4); DOT(a5); DOT(a6); DOT(a7);
  }
  y_put(get_global_id(0), (float)(a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7));
}
