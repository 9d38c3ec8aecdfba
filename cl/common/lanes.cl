// Rows as vectors of 16, for CPUs, where a work-item is a loop iteration. EACH_LANE runs `many` for each 16 of `count` elements from `i` on,
// and `one` for each of the rest.
#define EACH_LANE(count, many, one) \
  { \
    uint i = 0; \
    for (; i + 16 <= (count); i += 16) { many; } \
    for (; i < (count); i++) { one; } \
  }

inline float lanes_sum(float16 v) {
  float8 a = v.lo + v.hi;
  float4 b = a.lo + a.hi;
  return (b.x + b.z) + (b.y + b.w);
}

inline float lanes_max(float16 v) {
  float8 a = fmax(v.lo, v.hi);
  float4 b = fmax(a.lo, a.hi);
  return fmax(fmax(b.x, b.z), fmax(b.y, b.w));
}
