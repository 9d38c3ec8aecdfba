// Loads and stores of halves as floats. CPU compilers without half arithmetic convert one half at a time in software;
// with SOFT_HALF (set by the backend for such devices) the bits are moved by vector integer operations instead. Infinities and
// NaN are not loaded (numeric contract); results are rounded to nearest even, as by the built-in functions. With SOFT_HALF what is beyond the range
// of a half is stored as the last one, by all forms alike: vectors and the single elements behind them are of one row. Pairs and fours are of
// two kinds: `pair` and `four` begin at a multiple of their size, which the others need not.
#ifdef SOFT_HALF
#define HALF_SOFT_FORMS(n) \
  inline float##n half_load##n(size_t i, const __global half *x) { \
    uint##n h = convert_uint##n(vload##n(i, (const __global ushort *)x)); \
    return as_float##n(((h & 0x7FFFu) << 13u) | ((h & 0x8000u) << 16u)) * 0x1p112f; \
  } \
  inline void half_store##n(float##n v, size_t i, __global half *y) { \
    uint##n f = as_uint##n(v), sign = (f >> 16u) & 0x8000u; \
    f &= 0x7FFFFFFFu; \
    uint##n normal = (f - 0x38000000u + 0xFFFu + ((f >> 13u) & 1u)) >> 13u; \
    uint##n tiny = as_uint##n(as_float##n(f) + 0.5f) - 0x3F000000u; \
    uint##n bits = select(normal, tiny, (f < 0x38800000u)); \
    vstore##n(convert_ushort##n(min(bits, 0x7BFFu) | sign), i, (__global ushort *)y); \
  }
HALF_SOFT_FORMS(2)
HALF_SOFT_FORMS(4)
HALF_SOFT_FORMS(8)
HALF_SOFT_FORMS(16)
#define half_load_pair half_load2
#define half_load_four half_load4
#define half_store_pair half_store2
#define half_store_four half_store4
inline void half_store(float v, size_t i, __global half *y) { vstore_half(clamp(v, -65504.0f, 65504.0f), i, y); }
inline float half_load(size_t i, const __global half *x) {
  uint h = ((const __global ushort *)x)[i];
  return as_float(((h & 0x7FFFu) << 13u) | ((h & 0x8000u) << 16u)) * 0x1p112f;
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
