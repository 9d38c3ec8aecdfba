// y[o, i, m, j, t] = x interpolated at the coordinates of i along the axis of in_h elements, and of
// j along the axis of in_w elements. A work-item computes two neighbouring results. TAPS is the
// number of elements along each axis that contribute to a result: 1 (nearest, chosen by ROUNDING),
// 2 (linear) or 4 (cubic).
//
// The coordinate of result i is (i * step + first) / unit, or by COORDINATES:
#define ONE_IS_FIRST 1
#define CROP 2
// ROUNDING:
#define DOWN 0
#define UP 1
#define NEAREST_OR_DOWN 2
#define NEAREST_OR_UP 3
#define UP_IF_SMALLER 4

// The coordinate low + part / unit.
typedef struct {
  int low;
  uint part, unit;
} Place;

inline Place place(uint i, uint size, uint out, uint step, int first, uint unit, float start, float end) {
  // Mesa's compiler for Mali rejects an initializer.
  Place at;
  at.low = 0;
  at.part = 0;
  at.unit = 1;
  if (COORDINATES == ONE_IS_FIRST && out <= 1) return at;
  if (COORDINATES == CROP) {
    float last = (float)(size - 1);
    float v = out <= 1 ? 0.5f * (start + end) * last
        : start * last + (float)i * (end - start) * last / (float)(out - 1);
    // Near an element or halfway between two, only rounding decides.
    float near = rint(2.0f * v) * 0.5f;
    if (fabs(v - near) <= fmin(4e-7f * (float)size * (1.0f + fabs(start) + fabs(end)), 0.01f)) v = near;
    v = clamp(v, -1e9f, 1e9f);
    at.low = (int)floor(v);
    at.unit = 1 << 24;
    at.part = (uint)((v - floor(v)) * (float)at.unit);
    return at;
  }
  // Floats estimate the quotient. The remainder is small, so it is exact modulo 2^32.
  at.unit = unit;
  at.low = (int)floor(((float)i * (float)step + (float)first) / (float)unit);
  int rest = (int)(i * step + (uint)first - (uint)at.low * unit);
  int more = (int)floor((float)rest / (float)unit);
  at.low += more;
  rest -= more * (int)unit;
  if (rest < 0) {
    at.low--;
    rest += (int)unit;
  }
  if (rest >= (int)unit) {
    at.low++;
    rest -= (int)unit;
  }
  at.part = (uint)rest;
  return at;
}

inline float cubic_weight(float a, float d) {
  if (d <= 1.0f) return ((a + 2.0f) * d - (a + 3.0f)) * d * d + 1.0f;
  return d < 2.0f ? ((a * d - 5.0f * a) * d + 8.0f * a) * d - 4.0f * a : 0.0f;
}

// The elements that are interpolated at a coordinate, and their weights. Returns false if CROP puts
// it outside the operand.
inline bool taps(Place at, uint size, uint step, float a, uint *element, float *weight) {
  int last = (int)size - 1;
  bool inside = COORDINATES != CROP || (at.low >= 0 && (at.low < last || (at.low == last && at.part == 0)));
  if (TAPS == 1) {
    bool up = false;
    if (ROUNDING == NEAREST_OR_DOWN) up = 2 * at.part > at.unit;
    if (ROUNDING == NEAREST_OR_UP) up = 2 * at.part >= at.unit;
    if (ROUNDING == UP) up = at.part > 0;
    if (ROUNDING == UP_IF_SMALLER) up = step > at.unit && at.part > 0;
    element[0] = (uint)clamp(up ? at.low + 1 : at.low, 0, last);
    weight[0] = 1.0f;
    return inside;
  }
  if (TAPS == 2 && (at.low < 0 || at.low >= last)) {
    at.low = clamp(at.low, 0, last);
    at.part = 0;
  }
  float part = (float)at.part / (float)at.unit, sum = 0.0f;
  for (int t = 0; t < TAPS; t++) {
    int beside = t - (TAPS / 2 - 1), near = at.low + beside;
    float d = fabs(part - (float)beside), w = TAPS == 4 ? cubic_weight(a, d) : fmax(1.0f - d, 0.0f);
#ifdef INSIDE_ONLY
    if (near < 0 || near > last) w = 0.0f;
#endif
    sum += w;
    element[t] = (uint)clamp(near, 0, last);
    weight[t] = w;
  }
  for (uint t = 0; t < TAPS; t++) weight[t] /= sum;
  return inside;
}

// The taps of result row i, and whether its coordinate is inside.
#ifdef HIGH
#define ROW(i) \
  uint rows[TAPS]; \
  float u[TAPS]; \
  bool inside_h = taps(place(i, p.in_h, p.out_h, p.step_h, p.first_h, p.unit_h, p.start_h, p.end_h), p.in_h, p.step_h, \
      p.cubic, rows, u);
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
    bool inside = taps(place(j, p.in_w, p.out_w, p.step_w, p.first_w, p.unit_w, p.start_w, p.end_w), p.in_w, p.step_w, \
        p.cubic, cols, w) && inside_h; \
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
