// y[n, c, i] = x[n, c], interpolated at the two coordinates in grid[n, i]. A work-item computes two
// neighbouring results. TAPS elements along each axis contribute to a result: 1 (nearest), 2
// (linear) or 4 (cubic).

// Reflects x at the centres or borders of the outermost elements until it is inside, then clamps it
// to the elements.
inline float reflected(float x, float n) {
#ifdef CORNERS
  float low = 0.0f, span = n - 1.0f;
#else
  float low = -0.5f, span = n;
#endif
  if (span <= 0.0f) return 0.0f;
  float at = x - low;
  at -= floor(at / (2.0f * span)) * 2.0f * span;
  return clamp(low + fmin(at, 2.0f * span - at), 0.0f, n - 1.0f);
}

inline float cubic_weight(float d) {
  float a = -0.75f;
  if (d <= 1.0f) return ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f;
  return d < 2.0f ? ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a : 0.0f;
}

// The elements around a coordinate in -1 to 1 along an axis of `size` elements, and their weights,
// which are 0 for elements outside.
inline void taps(float v, uint size, uint *element, float *weight) {
  float n = (float)size;
#ifdef CORNERS
  float x = (v + 1.0f) / 2.0f * (n - 1.0f);
#else
  float x = ((v + 1.0f) * n - 1.0f) / 2.0f;
#endif
  if (TAPS != 4) {
#ifdef BORDER
    x = clamp(x, 0.0f, n - 1.0f);
#else
#ifdef REFLECTION
    x = reflected(x, n);
#else
    x = clamp(x, -2.0f, n + 1.0f);
#endif
#endif
  }
  float low = floor(x);
  for (uint t = 0; t < TAPS; t++) {
    float place = TAPS == 1 ? rint(x) : low + (float)t - (TAPS == 4 ? 1.0f : 0.0f);
    float w = TAPS == 1 ? 1.0f : TAPS == 4 ? cubic_weight(fabs(x - place)) : t == 0 ? 1.0f - (x - low) : x - low;
#ifdef BORDER
    place = clamp(place, 0.0f, n - 1.0f);
#else
#ifdef REFLECTION
    place = round(reflected(place, n));
#else
    if (place < 0.0f || place > n - 1.0f) w = 0.0f;
#endif
#endif
    element[t] = (uint)clamp(place, 0.0f, n - 1.0f);
    weight[t] = w;
  }
}

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1);
    uint plane = i / p.places, at = plane / p.channels * p.places + i % p.places;
    uint rows[TAPS], cols[TAPS];
    float u[TAPS], w[TAPS];
    taps(grid_at(2 * at), p.in_w, cols, w);
    taps(grid_at(2 * at + 1), p.in_h, rows, u);
    float s = 0.0f;
    for (uint a = 0; a < TAPS; a++)
      for (uint b = 0; b < TAPS; b++) s += u[a] * w[b] * x_at((plane * p.in_h + rows[a]) * p.in_w + cols[b]);
    v[h] = s;
  }
  y_put2(pair, (float2)(v[0], v[1]));
}
