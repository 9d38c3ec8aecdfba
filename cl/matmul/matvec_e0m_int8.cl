// y[column + j] = sum_k x[k] * w[k, j] for one row x of DEPTH elements and an E0M weight of 4 or 8
// bits. Every work-group quantizes x to signed bytes, in blocks of GROUP elements. LANES work-items
// take COLS neighbouring columns each. The work-items of a work-group that share columns take every
// SLICES-th block each. For the sum over a block, see matmul_e0m_int8.
//
// With HAS_GAIN, x is normalized first: x / sqrt(mean of squares + epsilon) * gain. With PARTS, the
// columns up to end0, up to end1 and the rest are separate results, which start at elements 0,
// start1 and start2. With HAS_CODES2, every other slice multiplies by a second weight of the same
// size, and the epilogue takes the results of both.
#include "common/e0m"
#include "common/parts"
#include "common/dot"
#define UINTS CAT(uint, COLS)
#define FLOATS CAT(float, COLS)
#define SLICES (WG / LANES)
#define BLOCKS ((DEPTH + GROUP - 1) / GROUP)
#define LOAD(at) CAT(vload, COLS)(0, at)
#ifdef HAS_GAIN
#define FOUR_VALUES(i) (x_at4((from + (i)) / 4) * gain_at4((from + (i)) / 4))
#else
#define FOUR_VALUES(i) x_at4((from + (i)) / 4)
#endif
#include "common/bytes"
#ifdef PER4
#define STEP(t) { \
    UINTS word = LOAD(word_at + (t) * p.panel); \
    sums = DOT(sums, CODES_OF(word), bytes[t]); \
  }
#else
#define STEP(t) { \
    UINTS word = LOAD(word_at + (t) * p.panel); \
    sums = DOT(sums, word & 0x0F0F0F0Fu, bytes[2 * (t)]); \
    sums = DOT(sums, (word >> 4u) & 0x0F0F0F0Fu, bytes[2 * (t) + 1]); \
  }
#endif
// Adds the scaled sums of block g.
#ifdef NESTED
#define ADD_SCALED(total, g) { \
    E0M_SCALES(UINTS, FLOATS, LOAD, pair_at, (g) / SPAN, p.panel, DEPTH) \
    total += factors[2 * (g)] / CODES_UNIT * CAT(convert_float, COLS)(dots) * scale \
        + factors[2 * (g) + 1] * E0M_WEIGHT(LEAST_LEVEL, scale, rest); \
  }
#else
#define ADD_SCALED(total, g) { \
    UINTS pair = LOAD(pair_at + (g) / SPAN * p.panel); \
    FLOATS scale = E0M_HALF(FLOATS, pair); \
    total += scale * (factors[2 * (g)] / CODES_UNIT * CAT(convert_float, COLS)(dots) \
        + factors[2 * (g) + 1] * (LEAST_LEVEL - E0M_HALF(FLOATS, pair >> 16u))); \
  }
#endif
// The product with every `apart`-th block of a weight, from block `from` on.
#define PRODUCT(total, codes, scales, from, apart) { \
    __global const uint *word_at = \
        (__global const uint *)(codes) + own / p.panel * E0M_ROWS(DEPTH / PER) * p.panel + own % p.panel; \
    __global const uint *pair_at = \
        (__global const uint *)(scales) + own / p.panel * E0M_SCALE_ROWS(DEPTH) * p.panel + own % p.panel; \
    for (uint g = from; g < BLOCKS; g += apart) { \
      INTS dots = (INTS)(0); \
      uint t = g * (GROUP / PER), end = min(t + GROUP / PER, (uint)(DEPTH / PER)); \
      BY_STEPS(PARTIAL sums = (PARTIAL)(0), dots += WIDEN(sums)) \
      ADD_SCALED(total, g) \
    } \
    total *= norm; \
  }
#ifdef HAS_CODES2
#define SIDES 2
#define PUT2(i, v, u) y_put2(i, v, u)
#else
#define SIDES 1
#define PUT2(i, v, u) y_put2(i, v)
#endif

KERNEL {
  __local uint bytes[DEPTH / 4] __attribute__((aligned(64)));
  __local float factors[2 * BLOCKS];
  __local float part[WG * COLS];
#ifdef HAS_GAIN
  __local float squares[WG];
  float square = 0.0f;
#endif
  uint lid = get_local_id(0), lane = lid % LANES;
  for (uint g = lid; g < BLOCKS; g += WG) {
    uint from = g * GROUP, count = min((uint)GROUP, (uint)DEPTH - from);
    TO_BYTES(count, bytes, from / 4)
    factors[2 * g] = scale;
    factors[2 * g + 1] = scale * (float)sum;
#ifdef HAS_GAIN
    i = 0;
    for (; i < count; i += 4) {
      float4 v = x_at4((from + i) / 4);
      square += dot(v, v);
    }
#endif
  }
#ifdef HAS_GAIN
  squares[lid] = square;
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  float norm = 1.0f;
#ifdef HAS_GAIN
  square = 0.0f;
  for (uint i = 0; i < WG; i++) square += squares[i];
  norm = rsqrt(square / (float)DEPTH + p.epsilon);
#endif
  uint first = get_group_id(0) * (LANES * COLS);
  uint j = first + lane * COLS, own = j < p.n ? j : 0;
  FLOATS total = (FLOATS)(0.0f);
  uint slice = lid / LANES;
  __global const uint4 *codes_of = codes, *scales_of = scales;
#ifdef HAS_CODES2
  if (slice % 2 == 1) {
    codes_of = codes2;
    scales_of = scales2;
  }
#endif
  PRODUCT(total, codes_of, scales_of, slice / SIDES, SLICES / SIDES)
  CAT(vstore, COLS)(total, lid, part);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint t = 2 * lid; t < LANES * COLS && first + t < p.n; t += 2 * WG) {
    float2 v = (float2)(0.0f), u = (float2)(0.0f);
    for (uint i = 0; i < SLICES; i += SIDES) v += vload2((i * LANES * COLS + t) / 2, part);
    for (uint i = 1; i < SLICES; i += 2) u += vload2((i * LANES * COLS + t) / 2, part);
    uint c = p.column + first + t;
    PUT2(column_at(c, p) / 2, v, u);
  }
}
