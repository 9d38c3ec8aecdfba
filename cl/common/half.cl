// Loads and stores of halves as floats. CPU compilers without half arithmetic convert halves one by
// one in software. For such devices the backend sets SOFT_HALF, and vector integer operations move
// the bits instead. Results are rounded to nearest even, as by the built-in functions.
//
// With SOFT_HALF, a finite number beyond the range of a half is stored as the largest half of its
// sign. Vector and scalar stores do the same, since one row may use both. Infinities and NaN are
// kept. Only with FINITE_HALF, in kernels where the test would cost time, are they loaded as large
// numbers.
//
// `pair` and `four` must begin at a multiple of their size; forms with 2 and 4 need not.
#ifdef SOFT_HALF
#ifdef FINITE_HALF
#define HALF_SPECIAL(h, uints) 0u
#else
#define HALF_SPECIAL(h, uints) select((uints)(0u), (uints)(0x7F800000u), ((h) & 0x7C00u) == 0x7C00u)
#endif
#define HALF_SOFT_FORMS(n) \
  inline float##n half_load##n(size_t i, const __global half *x) { \
    uint##n h = convert_uint##n(vload##n(i, (const __global ushort *)x)); \
    float##n v = as_float##n(((h & 0x7FFFu) << 13u) | ((h & 0x8000u) << 16u)) * 0x1p112f; \
    return as_float##n(as_uint##n(v) | HALF_SPECIAL(h, uint##n)); \
  } \
  inline void half_store##n(float##n v, size_t i, __global half *y) { \
    uint##n f = as_uint##n(v), sign = (f >> 16u) & 0x8000u; \
    f &= 0x7FFFFFFFu; \
    uint##n normal = (f - 0x38000000u + 0xFFFu + ((f >> 13u) & 1u)) >> 13u; \
    uint##n tiny = as_uint##n(as_float##n(f) + 0.5f) - 0x3F000000u; \
    uint##n bits = min(select(normal, tiny, (f < 0x38800000u)), (uint##n)(0x7BFFu)); \
    bits = select(bits, (f >> 13u & 0x3FFu) | 0x7C00u, (f >= 0x7F800000u)); \
    vstore##n(convert_ushort##n(bits | sign), i, (__global ushort *)y); \
  }
HALF_SOFT_FORMS(2)
HALF_SOFT_FORMS(4)
HALF_SOFT_FORMS(8)
HALF_SOFT_FORMS(16)
#define half_load_pair half_load2
#define half_load_four half_load4
#define half_store_pair half_store2
#define half_store_four half_store4
inline void half_store(float v, size_t i, __global half *y) {
  vstore_half(fabs(v) <= 3.4028235e38f ? clamp(v, -65504.0f, 65504.0f) : v, i, y);
}
inline float half_load(size_t i, const __global half *x) {
  uint h = ((const __global ushort *)x)[i];
  float v = as_float(((h & 0x7FFFu) << 13u) | ((h & 0x8000u) << 16u)) * 0x1p112f;
#ifdef FINITE_HALF
  return v;
#else
  return (h & 0x7C00u) == 0x7C00u ? as_float(as_uint(v) | 0x7F800000u) : v;
#endif
}
#else
#define half_load(i, x) vload_half(i, x)
#define half_load2(i, x) vload_half2(i, x)
#define half_load4(i, x) vload_half4(i, x)
#define half_load8(i, x) vload_half8(i, x)
#define half_load16(i, x) vload_half16(i, x)
#define half_load_pair(i, x) vloada_half2(i, x)
#define half_load_four(i, x) vloada_half4(i, x)
#define half_store(v, i, y) vstore_half(v, i, y)
#define half_store2(v, i, y) vstore_half2(v, i, y)
#define half_store4(v, i, y) vstore_half4(v, i, y)
#define half_store8(v, i, y) vstore_half8(v, i, y)
#define half_store16(v, i, y) vstore_half16(v, i, y)
#define half_store_pair(v, i, y) vstorea_half2(v, i, y)
#define half_store_four(v, i, y) vstorea_half4(v, i, y)
#endif
