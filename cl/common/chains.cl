// Rounds of multiply-adds of type REAL: eight chains of vectors of four elements, and the sum of
// all. Compilers may fuse the multiply-adds; CPU drivers compute `mad` in two steps.
#define VECTOR CAT(REAL, 4)
inline float chains(REAL start, REAL factor, REAL addend, uint rounds) {
  VECTOR m = (VECTOR)(factor), c = (VECTOR)(addend), one = (VECTOR)((REAL)1.0f);
  VECTOR a0 = (VECTOR)(start), a1 = a0 + one, a2 = a1 + one, a3 = a2 + one, a4 = a3 + one, a5 = a4 + one, a6 = a5 + one,
      a7 = a6 + one;
  for (uint i = 0; i < rounds; i++) {
    a0 = a0 * m + c;
    a1 = a1 * m + c;
    a2 = a2 * m + c;
    a3 = a3 * m + c;
    a4 = a4 * m + c;
    a5 = a5 * m + c;
    a6 = a6 * m + c;
    a7 = a7 * m + c;
  }
  a0 = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;
  CAT(REAL, 4) sum = a0;
  return (float)(sum.x + sum.y + sum.z + sum.w);
}
