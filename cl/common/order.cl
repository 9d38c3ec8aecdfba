// The order of floats as that of integers: zeros are equal, and all NaNs are `nan`.
inline int order_of(float v, int nan) {
  int bits = as_int(v), magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return nan;
  return bits < 0 ? -magnitude : magnitude;
}
