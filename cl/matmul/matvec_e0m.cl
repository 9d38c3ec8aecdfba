// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-item takes COLS
// neighbouring columns. LANES work-items are side by side in a work-group, and WG / LANES
// work-items share the same columns: each takes every WG / LANES-th stretch of weights. With w = s
// * (w1 - b), sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing per weight.
//
// With WHOLE, the loads of a full stretch are issued together, so that they do not wait for each
// other. With PARTS, the columns up to end0, up to end1 and the rest are separate results, which
// start at elements 0, start1 and start2.
//
// With HAS_GAIN, x is normalized first: x / sqrt(mean of squares + epsilon) * gain, where the first
// factor is applied to the sums. With HAS_CODES2, every other slice multiplies by a second weight
// of the same size, and the epilogue takes the results of both. With IMAGE_CODES, which excludes
// HAS_CODES2, COLS is 4.
//
// With PAIRS, the products of a step are products of halves, for COLS = 4 and x in halves: two
// chains of four multiply-adds per column, for even and for odd weights, which are added up in
// single precision (numeric contract, ARCHITECTURE.md). The middle of the range of w1 is subtracted
// first: s * (sum x * (w1 - MIDDLE) - (b - MIDDLE) * sum x). This makes the products as small as
// possible, and so also their rounding errors.
#ifdef PAIRS
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif
#include "common/e0m"
#include "common/parts"
#define SLICES (WG / LANES)
#ifdef HAS_CODES2
#define SIDES 2
#else
#define SIDES 1
#endif
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define AS_FLOATS CAT(as_float, COLS)
// Vectors are aligned, since the columns of panels and of work-items are multiples of COLS.
#ifdef IMAGE_CODES
#define CODES(at) codes_at4(at)
#else
#define CODES(at) ((__global const UINTS *)codes_of)[at]
#endif
#ifdef PAIRS
// (w1 - MIDDLE) / DIVISOR: a sum of four products with any halves stays finite.
#define MIDDLE 3.0f
#define DIVISOR 4.0f
#define CENTERED(word, low, k) (as_half2(E0M_HALVES(word, low, k, 0x38003800u)) - (half2)((half)(MIDDLE / DIVISOR)))
#define TERM(c, v, k) mad(v, CENTERED(word.c, low.c, k)
#define COLUMN(c) { \
    half2 d = TERM(c, a.s67, 3), TERM(c, a.s45, 2), TERM(c, a.s23, 1), a.s01 * CENTERED(word.c, low.c, 0)))); \
    dots.c += (float)d.x + (float)d.y; \
  }
#define TERMS(r) { \
    half8 a = as_half8(((__global const uint4 *)x)[r]); \
    COLUMN(x) COLUMN(y) COLUMN(z) COLUMN(w) \
    float4 s = convert_float4(a.lo) + convert_float4(a.hi); \
    sum += s.x + s.y + s.z + s.w; \
  }
#else
#define TERM(v, k) dots += (v) * AS_FLOATS(E0M_LEVEL(word, low, k))
#ifdef HAS_GAIN
#define LOAD_FOUR(v, i) float4 v = x_at4(i); square += dot(v, v); v *= gain_at4(i);
#else
#define LOAD_FOUR(v, i) float4 v = x_at4(i);
#endif
#ifdef PER4
#define TERMS(r) { \
    LOAD_FOUR(a, r) \
    sum += a.x + a.y + a.z + a.w; \
    TERM(a.x, 0); TERM(a.y, 1); TERM(a.z, 2); TERM(a.w, 3); \
  }
#else
#define TERMS(r) { \
    LOAD_FOUR(a, 2 * (r)) \
    LOAD_FOUR(b, 2 * (r) + 1) \
    sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w; \
    TERM(a.x, 0); TERM(a.y, 1); TERM(a.z, 2); TERM(a.w, 3); \
    TERM(b.x, 4); TERM(b.y, 5); TERM(b.z, 6); TERM(b.w, 7); \
  }
#endif
#endif
#define STEP(r) { UINTS word = E0M_HIGH(CODES, word_at, r, panel), low = E0M_LOW(CODES, word_at, r, panel); TERMS(r) }
#define STRETCH (GROUP / PER)
#define SCALE_WORDS(at) ((__global const UINTS *)scales_of)[at]

KERNEL {
  __local float part[WG * COLS] __attribute__((aligned(64)));
  uint lid = get_local_id(0), lane = lid % LANES, slice = lid / LANES;
#ifdef IMAGE_CODES
  __global const uint4 *scales_of = scales;
#else
  __global const uint4 *codes_of = codes, *scales_of = scales;
#endif
#ifdef HAS_CODES2
  if (slice % 2 == 1) {
    codes_of = codes2;
    scales_of = scales2;
  }
#endif
#ifdef HAS_GAIN
  __local float squares[SLICES];
  float square = 0.0f;
#endif
  uint first = get_group_id(0) * (LANES * COLS);
  uint j = first + lane * COLS;
  j = j < p.n ? j : 0;
  FLOATS total = (FLOATS)(0.0f);
  uint groups = (p.steps + STRETCH - 1) / STRETCH;
  uint panel = p.panel / COLS, words = E0M_ROWS(p.steps), pairs = E0M_SCALE_ROWS(p.steps * PER);
  uint word_at = j / p.panel * words * panel + j % p.panel / COLS,
      pair_at = j / p.panel * pairs * panel + j % p.panel / COLS;
  for (uint g = slice / SIDES; g < groups; g += SLICES / SIDES) {
    FLOATS dots = (FLOATS)(0.0f);
    float sum = 0.0f;
    uint first_step = g * STRETCH, count = min((uint)STRETCH, p.steps - first_step);
#ifdef WHOLE
    if (count == STRETCH) {
      _Pragma("unroll") for (uint i = 0; i < STRETCH; i++) STEP(first_step + i)
    } else
#endif
    for (uint r = first_step; r < first_step + count; r++) STEP(r)
#ifdef NESTED
    E0M_SCALES(UINTS, FLOATS, SCALE_WORDS, pair_at, g / SPAN, panel, p.steps * PER)
#ifdef PAIRS
    total += scale * (DIVISOR * dots) + E0M_WEIGHT(MIDDLE, scale, rest) * sum;
#else
    total += scale * dots + E0M_WEIGHT(0.0f, scale, rest) * sum;
#endif
#else
    UINTS pair = ((__global const UINTS *)scales_of)[pair_at + g / SPAN * panel];
#ifdef PAIRS
    half8 factors = as_half8(pair);
    total += convert_float4(factors.even) * (DIVISOR * dots - (convert_float4(factors.odd) - MIDDLE) * sum);
#else
    total += E0M_HALF(FLOATS, pair) * (dots - E0M_HALF(FLOATS, pair >> 16u) * sum);
#endif
#endif
  }
  ((__local FLOATS *)part)[lid] = total;
#ifdef HAS_GAIN
  if (lane == 0) squares[slice] = square;
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
#ifdef HAS_GAIN
  square = 0.0f;
  for (uint i = 0; i < SLICES; i += SIDES) square += squares[i];
  float factor = rsqrt(square / (float)DEPTH + p.epsilon);
#else
  float factor = 1.0f;
#endif
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
    for (uint i = 0; i < SUMS; i += SIDES) v += ((__local float2 *)part)[(i * LANES * COLS + t) / 2];
    uint c = column_at(p.column + first + t, p);
#ifdef HAS_CODES2
    float2 u = (float2)(0.0f);
    for (uint i = 1; i < SUMS; i += 2) u += ((__local float2 *)part)[(i * LANES * COLS + t) / 2];
    y_put2(c / 2, v * factor, u * factor);
#else
    y_put2(c / 2, v * factor);
#endif
  }
}
