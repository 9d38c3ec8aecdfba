// Dot products of the four bytes of words: codes of an E0M weight, in vectors of COLS words, with
// activations as signed bytes, one word for all. DOT adds them to PARTIAL sums, which hold
// DOT_STEPS steps. WIDEN converts these to INTS. Codes of 8 bits are signed too, that is, code -
// 128, unless DOT takes them unsigned: then CODES_OF keeps them, and LEAST_LEVEL is the level of
// code 0.
//
// PTX, KHR or ARM: the form of the driver's instruction, for four columns.
#define INTS CAT(int, COLS)
// Number of codes per unit of w1.
#ifdef PER4
#define CODES_UNIT 128.0f
#else
#define CODES_UNIT 8.0f
#endif
#define DOT_STEPS 4
// Runs STEP(t) from `t` to `end`, DOT_STEPS at a time between `before` and `after`; with IN_TURN
// one by one.
#ifdef IN_TURN
#define BY_STEPS(before, after) \
  before; \
  for (; t < end; t++) STEP(t) \
  after;
#else
#define BY_STEPS(before, after) \
  for (; t + DOT_STEPS <= end; t += DOT_STEPS) { \
    before; \
    _Pragma("unroll") for (uint s = 0; s < DOT_STEPS; s++) STEP(t + s) \
    after; \
  } \
  if (t < end) { \
    before; \
    for (; t < end; t++) STEP(t) \
    after; \
  }
#endif
#define PARTIAL INTS
#define WIDEN(sum) (sum)
#ifdef PER4
#define CODES_OF(word) ((word) ^ 0x80808080u)
#define LEAST_LEVEL 3.0f
#else
#define CODES_OF(word) (word)
#define LEAST_LEVEL 2.0f
#endif
#define DOT(sum, words, a) \
  (INTS)(dot_one((sum).x, (words).x, a), dot_one((sum).y, (words).y, a), dot_one((sum).z, (words).z, a), \
      dot_one((sum).w, (words).w, a))
#ifdef PTX
inline int dot_one(int sum, uint w, uint a) {
  asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(w), "r"(a));
  return sum;
}
#else
#ifdef KHR
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#define dot_one(sum, w, a) ((sum) + dot_4x8packed_ss_int(w, a))
#else
#ifdef ARM
#pragma OPENCL EXTENSION cl_arm_integer_dot_product_accumulate_int8 : enable
#define dot_one(sum, w, a) arm_dot_acc(as_char4(w), as_char4(a), sum)
#else
// Byte b of words, as a signed number.
#define DOT_BYTE(type, w, b) (CAT(as_, type)((w) << (24u - 8u * (b))) >> 24)
#define DOT_TERM(w, a, b) DOT_BYTE(INTS, w, b) * DOT_BYTE(int, a, b)
#undef DOT
#define DOT(sum, w, a) ((sum) + DOT_TERM(w, a, 0) + DOT_TERM(w, a, 1) + DOT_TERM(w, a, 2) + DOT_TERM(w, a, 3))
#endif
#endif
#endif
