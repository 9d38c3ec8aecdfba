// Reductions over a work-group whose size WG is a multiple of 8. Every work-item calls, and every
// work-item gets the result. Two short levels instead of a tree need only three barriers, which are
// what costs time on CPU drivers. `scratch` holds WG + WG / 8 values and may be used again after
// the call.
inline float wg_sum(float v, __local float *scratch) {
  uint lid = get_local_id(0);
  scratch[lid] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < WG / 8) {
    float s = 0.0f;
    for (uint i = 0; i < 8; i++) s += scratch[lid * 8 + i];
    scratch[WG + lid] = s;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float total = 0.0f;
  for (uint i = 0; i < WG / 8; i++) total += scratch[WG + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  return total;
}

// NaN propagates.
inline float larger_float(float a, float b) { return a != a || a > b ? a : b; }

inline float wg_max(float v, __local float *scratch) {
  uint lid = get_local_id(0);
  scratch[lid] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < WG / 8) {
    float s = scratch[lid * 8];
    for (uint i = 1; i < 8; i++) s = larger_float(s, scratch[lid * 8 + i]);
    scratch[WG + lid] = s;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float total = scratch[WG];
  for (uint i = 1; i < WG / 8; i++) total = larger_float(total, scratch[WG + i]);
  barrier(CLK_LOCAL_MEM_FENCE);
  return total;
}
