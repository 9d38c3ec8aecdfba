// y[o, i, m, j, t] = x interpolated at the coordinates of i along the axis of in_h elements, and of j along the axis of in_w elements. A work-item
// computes two neighbouring results.
// TAPS is the number of elements along each axis that contribute to a result: 1 (nearest, chosen by ROUNDING), 2 (linear) or 4 (cubic).
#define HALF_PIXEL 0
#define PYTORCH_HALF_PIXEL 1
#define HALF_PIXEL_SYMMETRIC 2
#define ALIGN_CORNERS 3
#define ASYMMETRIC 4
#define HALF_PIXEL_CENTRES 5
#define CROP 6
// ROUNDING:
#define DOWN 0
#define UP 1
#define NEAREST_OR_DOWN 2
#define NEAREST_OR_UP 3
#define UP_IF_SMALLER 4

// a / b. Where the quotient selects an element (TAPS 1), it is corrected to the nearest float, because division on GPUs may be off by a few ULP. The
// remainder avoids fma, which some GPUs emulate: q and b are split into halves whose products are exact.
inline float quotient(float a, float b) {
  if (TAPS != 1) return a / b;
  float reciprocal = 1.0f / b, q = a * reciprocal;
  float q_high = as_float(as_uint(q) & 0xfffff000u), q_low = q - q_high;
  float b_high = as_float(as_uint(b) & 0xfffff000u), b_low = b - b_high;
  float remainder = a - q_high * b_high - q_high * b_low - q_low * b_high - q_low * b_low;
  return q + remainder * reciprocal;
}

// The coordinate of result i along an axis of `size` elements and `out` results, by COORDINATES.
inline float coordinate(uint i, uint size, uint out, float scale, float start, float end) {
  float at = (float)i, last = (float)(size - 1);
  if ((COORDINATES == PYTORCH_HALF_PIXEL || COORDINATES == ALIGN_CORNERS) && out <= 1) return 0.0f;
  if (COORDINATES == ALIGN_CORNERS) return quotient(at * last, (float)(out - 1));
  if (COORDINATES == CROP) {
    if (out <= 1) return 0.5f * (start + end) * last;
    return start * last + at * (end - start) * last / (float)(out - 1);
  }
  if (COORDINATES == HALF_PIXEL_SYMMETRIC) {
    float offset = (float)size / 2.0f * (1.0f - (float)out / (scale * (float)size));
    return offset + quotient(at + 0.5f, scale) - 0.5f;
  }
  if (COORDINATES == ASYMMETRIC) return quotient(at, scale);
  at = quotient(at + 0.5f, scale);
  return COORDINATES == HALF_PIXEL_CENTRES ? at : at - 0.5f;
}

inline float cubic_weight(float a, float d) {
  if (d <= 1.0f) return ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f;
  return d < 2.0f ? ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a : 0.0f;
}

// The elements that are interpolated at a coordinate, and their weights. Returns false if CROP puts it outside the operand.
inline bool taps(float at, uint size, float scale, float a, uint *element, float *weight) {
  float last = (float)(size - 1);
  bool inside = COORDINATES != CROP || (at >= 0.0f && at <= last);
  if (TAPS == 1) {
    float low = floor(at), half_way = at - low;
    if (ROUNDING == NEAREST_OR_DOWN) at = half_way == 0.5f ? low : round(at);
    if (ROUNDING == NEAREST_OR_UP) at = half_way == 0.5f ? low + 1.0f : round(at);
    if (ROUNDING == UP) at = ceil(at);
    if (ROUNDING == UP_IF_SMALLER) at = scale < 1.0f ? ceil(at) : low;
    element[0] = min((uint)max(floor(at), 0.0f), size - 1);
    weight[0] = 1.0f;
    return inside;
  }
  if (TAPS == 2) at = clamp(at, 0.0f, last);
  float low = floor(at), sum = 0.0f;
  for (uint t = 0; t < TAPS; t++) {
    float place = low + (float)t - (float)(TAPS / 2 - 1), d = fabs(at - place);
    float w = TAPS == 4 ? cubic_weight(a, d) : fmax(1.0f - d, 0.0f);
#ifdef INSIDE_ONLY
    if (place < 0.0f || place > last) w = 0.0f;
#endif
    sum += w;
    element[t] = (uint)clamp(place, 0.0f, last);
    weight[t] = w;
  }
  for (uint t = 0; t < TAPS; t++) weight[t] /= sum;
  return inside;
}

#ifdef BY_SIZE
#define SCALE_H quotient((float)p.out_h, (float)p.in_h)
#define SCALE_W quotient((float)p.out_w, (float)p.in_w)
#else
#define SCALE_H p.scale_h
#define SCALE_W p.scale_w
#endif

// The taps of result row i, and whether its coordinate is inside.
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

// Sets v to the result in column j of that row.
#define RESULT(v, o, m, j, t) \
  { \
    uint cols[TAPS]; \
    float w[TAPS]; \
    bool inside = taps(coordinate(j, p.in_w, p.out_w, SCALE_W, p.start_w, p.end_w), p.in_w, SCALE_W, p.cubic, cols, w) && inside_h; \
    if (TAPS == 1) v = AT(o, m, t, 0, 0); \
    else { \
      v = 0; \
      for (uint a = 0; a < HEIGHT; a++) { \
        float part = 0.0f; \
        for (uint b = 0; b < TAPS; b++) part += w[b] * AT(o, m, t, a, b); \
        v += u[a] * part; \
      } \
    } \
    if (COORDINATES == CROP && !inside) v = p.outside; \
  }
#define AT(o, m, t, a, b) x_at((((o) * p.in_h + rows[a]) * p.mid + (m)) * p.in_w * p.inner + cols[b] * p.inner + (t))

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
