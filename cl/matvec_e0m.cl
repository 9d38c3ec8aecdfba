// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-item takes COLS neighbouring columns, LANES of them
// lie side by side in a work-group, and WG / LANES share a column block, each taking every so many stretches of weights. With WHOLE a
// stretch that is not cut short is one run of loads that do not wait for each other. With PARTS the columns up to end0, up to end1 and the
// rest are results of their own, from elements 0, start1 and start2 on.
//
// With w = s * (w1 - b): sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing a weight.
#include "common/e0m"
#define SLICES (WG / LANES)
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define AS_FLOATS CAT(as_float, COLS)
#define LOAD CAT(vload, COLS)
#define LOAD_AT(at) LOAD(0, at)
#define STORE CAT(vstore, COLS)
#define HALVES(h) (AS_FLOATS((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)
#define TERM(v, k) dots += (v) * AS_FLOATS(E0M_LEVEL(word, low, k))
#ifdef PER4
#define TERMS(r) { \
    float4 a = x_at4(r); \
    sum += a.x + a.y + a.z + a.w; \
    TERM(a.x, 0); TERM(a.y, 1); TERM(a.z, 2); TERM(a.w, 3); \
  }
#else
#define TERMS(r) { \
    float4 a = x_at4(2 * (r)), b = x_at4(2 * (r) + 1); \
    sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w; \
    TERM(a.x, 0); TERM(a.y, 1); TERM(a.z, 2); TERM(a.w, 3); \
    TERM(b.x, 4); TERM(b.y, 5); TERM(b.z, 6); TERM(b.w, 7); \
  }
#endif
#define STEP(r) { UINTS word = E0M_HIGH(LOAD_AT, word_at, r, p.panel), low = E0M_LOW(LOAD_AT, word_at, r, p.panel); TERMS(r) }
#define STRETCH (GROUP / PER)

KERNEL {
  __local float part[WG * COLS];
  uint lid = get_local_id(0), lane = lid % LANES;
  uint first = get_group_id(0) * (LANES * COLS);
  uint j = first + lane * COLS;
  j = j < p.n ? j : 0;
  FLOATS total = (FLOATS)(0.0f);
  uint groups = (p.steps + STRETCH - 1) / STRETCH;
  __global const uint *word_at = (__global const uint *)codes + j / p.panel * E0M_ROWS(p.steps) * p.panel + j % p.panel;
  __global const uint *pair_at = (__global const uint *)scales + j / p.panel * E0M_GROUPS(p.steps * PER) * p.panel + j % p.panel;
  for (uint g = lid / LANES; g < groups; g += SLICES) {
    FLOATS dots = (FLOATS)(0.0f);
    float sum = 0.0f;
    uint first_step = g * STRETCH, count = min((uint)STRETCH, p.steps - first_step);
#ifdef WHOLE
    if (count == STRETCH) {
      _Pragma("unroll") for (uint i = 0; i < STRETCH; i++) STEP(first_step + i)
    } else
#endif
    for (uint r = first_step; r < first_step + count; r++) STEP(r)
    UINTS pair = LOAD(0, pair_at + g / SPAN * p.panel);
    total += HALVES(pair) * (dots - HALVES(pair >> 16u) * sum);
  }
  STORE(total, lid, part);
  barrier(CLK_LOCAL_MEM_FENCE);
#ifdef FOLD
  // Many slices are added up in two steps.
  float folded = 0.0f;
  if (lid < FOLD * LANES * COLS)
    for (uint i = lid; i < WG * COLS; i += FOLD * LANES * COLS) folded += part[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid < FOLD * LANES * COLS) part[lid] = folded;
  barrier(CLK_LOCAL_MEM_FENCE);
#define SUMS FOLD
#else
#define SUMS SLICES
#endif
  for (uint t = 2 * lid; t < LANES * COLS && first + t < p.n; t += 2 * WG) {
    float2 v = (float2)(0.0f);
    for (uint i = 0; i < SUMS; i++) v += vload2((i * LANES * COLS + t) / 2, part);
    uint c = p.column + first + t;
#ifdef PARTS
    c += c < p.end0 ? 0 : c < p.end1 ? p.start1 - p.end0 : p.start2 - p.end1;
#endif
    y_put2(c / 2, v);
  }
}
