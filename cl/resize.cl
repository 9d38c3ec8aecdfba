// y[o, i, m, j, t] = x at the places of i along an axis of in_h and of j along one of in_w elements, interpolated. A work-item computes two
// neighbouring results, or with ITEM a row of them.
#ifdef NEAREST
#define TAPS 1
#else
#ifdef CUBIC
#define TAPS 4
#else
#define TAPS 2
#endif
#endif

inline float coordinate(uint i, uint size, uint out, float scale, float start, float end) {
  float at = (float)i;
#ifdef ONE_AT_ZERO
  if (out <= 1) return 0.0f;
#endif
#ifdef CORNERS
  return at * (float)(size - 1) / (float)(out - 1);
#else
#ifdef REGION
  if (out <= 1) return 0.5f * (start + end) * (float)(size - 1);
  return start * (float)(size - 1) + at * (end - start) * (float)(size - 1) / (float)(out - 1);
#else
#ifdef SYMMETRIC
  float offset = (float)size / 2.0f * (1.0f - (float)out / (scale * (float)size));
  return offset + (at + 0.5f) / scale - 0.5f;
#else
#ifdef CENTRES
  at = (at + 0.5f) / scale;
#else
  at = at / scale;
#endif
#ifdef MOVED_BACK
  at -= 0.5f;
#endif
  return at;
#endif
#endif
#endif
}

inline float cubic_weight(float a, float d) {
  if (d <= 1.0f) return ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f;
  return d < 2.0f ? ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a : 0.0f;
}

// The elements that a place is made of, and their weights; false where it is outside of the operand.
inline bool taps(float at, uint size, float scale, float a, uint *element, float *weight) {
  float last = (float)(size - 1);
#ifdef REGION
  bool inside = at >= 0.0f && at <= last;
#else
  bool inside = true;
#endif
#ifdef NEAREST
  float low = floor(at), half_way = at - low;
#ifdef ROUND_DOWN
  at = half_way == 0.5f ? low : round(at);
#endif
#ifdef ROUND_UP
  at = half_way == 0.5f ? low + 1.0f : round(at);
#endif
#ifdef UPPER
  at = ceil(at);
#endif
#ifdef SIMPLE
  at = scale < 1.0f ? ceil(at) : low;
#endif
  element[0] = min((uint)max(floor(at), 0.0f), size - 1);
  weight[0] = 1.0f;
#else
#ifndef CUBIC
  at = clamp(at, 0.0f, last);
#endif
  float low = floor(at), sum = 0.0f;
  for (uint t = 0; t < TAPS; t++) {
    float place = low + (float)t - (float)(TAPS / 2 - 1), d = fabs(at - place);
#ifdef CUBIC
    float w = cubic_weight(a, d);
#else
    float w = fmax(1.0f - d, 0.0f);
#endif
#ifdef INSIDE_ONLY
    if (place < 0.0f || place > last) w = 0.0f;
#endif
    sum += w;
    element[t] = (uint)clamp(place, 0.0f, last);
    weight[t] = w;
  }
  for (uint t = 0; t < TAPS; t++) weight[t] /= sum;
#endif
  return inside;
}

#ifdef BY_SIZE
#define SCALE_H ((float)p.out_h / (float)p.in_h)
#define SCALE_W ((float)p.out_w / (float)p.in_w)
#else
#define SCALE_H p.scale_h
#define SCALE_W p.scale_w
#endif

// The taps of row i, and whether it is inside.
#ifdef HIGH
#define ROW(i) \
  uint rows[TAPS]; \
  float u[TAPS]; \
  bool inside_h = taps(coordinate(i, p.in_h, p.out_h, SCALE_H, p.start_h, p.end_h), p.in_h, SCALE_H, p.cubic, rows, u);
#define HEIGHT TAPS
#else
#define ROW(i) \
  uint rows[1] = {i}; \
  float u[1] = {1.0f}; \
  bool inside_h = true;
#define HEIGHT 1
#endif

// v = the result in column j of that row.
#define RESULT(v, o, m, j, t) \
  { \
    uint cols[TAPS]; \
    float w[TAPS]; \
    bool inside = taps(coordinate(j, p.in_w, p.out_w, SCALE_W, p.start_w, p.end_w), p.in_w, SCALE_W, p.cubic, cols, w) && inside_h; \
    SUM(v, o, m, t) \
    OUTSIDE(v) \
  }
#define AT(o, m, t, a, b) x_at((((o) * p.in_h + rows[a]) * p.mid + (m)) * p.in_w * p.inner + cols[b] * p.inner + (t))
#ifdef NEAREST
#define SUM(v, o, m, t) v = AT(o, m, t, 0, 0);
#else
#define SUM(v, o, m, t) \
  v = 0; \
  for (uint a = 0; a < HEIGHT; a++) { \
    float part = 0.0f; \
    for (uint b = 0; b < TAPS; b++) part += w[b] * AT(o, m, t, a, b); \
    v += u[a] * part; \
  }
#endif
#ifdef REGION
#define OUTSIDE(v) if (!inside) v = p.outside;
#else
#define OUTSIDE(v)
#endif

#ifdef ITEM
KERNEL {
  uint row = get_global_id(0), width = p.out_w * p.inner;
  if (row >= p.count / width) return;
  uint m = row % p.mid, i = row / p.mid % p.out_h, o = row / p.mid / p.out_h;
  ROW(i)
  for (uint j = 0; j < p.out_w; j++)
    for (uint t = 0; t < p.inner; t++) {
      ELEM v;
      RESULT(v, o, m, j, t)
      y_put(row * width + j * p.inner + t, v);
    }
}
#else
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint at = min(2 * pair + h, p.count - 1);
    uint t = at % p.inner, rest = at / p.inner;
    uint j = rest % p.out_w;
    rest /= p.out_w;
    uint m = rest % p.mid;
    rest /= p.mid;
    uint i = rest % p.out_h, o = rest / p.out_h;
    ROW(i)
    RESULT(v[h], o, m, j, t)
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
#endif
