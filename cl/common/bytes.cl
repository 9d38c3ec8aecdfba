// Quantizes a block of values v to signed bytes, four to a word: v / a to nearest, ties to even,
// where a is the largest magnitude of the block / 127. The bytes have the order of the codes of an
// E0M weight (common/e0m): positions 0 4 1 5 and 2 6 3 7 of eight, or with PER4 positions 0 2 1 3
// of four.
//
// The including file defines FOUR_VALUES(i), the four values from position i of the block on.
// TO_BYTES writes `count` bytes to words[at ..] and declares `scale` (a) and `sum`, the sum of the
// bytes.
#define BYTES_OF(v) convert_int4(rint((v) * inverse))
#define BYTES_WORD(a, b, c, d) as_uint(((a) & 255) | ((b) & 255) << 8 | ((c) & 255) << 16 | (d) << 24)
#define SUM_OF_FOUR(c) ((c).x + (c).y + ((c).z + (c).w))
#define MAX_OF_FOUR(v) fmax(fmax((v).x, (v).y), fmax((v).z, (v).w))
#ifdef PER4
#define BYTES_STEP 4
#define BYTES_PUT(words, at) \
    words[at] = BYTES_WORD(c.x, c.z, c.y, c.w);
#else
#define BYTES_STEP 8
#define BYTES_PUT(words, at) \
    int4 d = BYTES_OF(FOUR_VALUES(i + 4)); \
    sum += SUM_OF_FOUR(d); \
    words[at] = BYTES_WORD(c.x, d.x, c.y, d.y); \
    words[(at) + 1] = BYTES_WORD(c.z, d.z, c.w, d.w);
#endif
#define TO_BYTES(count, words, at) \
  float most = 0.0f; \
  int sum = 0; \
  uint i = 0; \
  for (; i < (count); i += 4) { \
    float4 a = fabs(FOUR_VALUES(i)); \
    most = fmax(most, MAX_OF_FOUR(a)); \
  } \
  float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f; \
  i = 0; \
  for (; i < (count); i += BYTES_STEP) { \
    int4 c = BYTES_OF(FOUR_VALUES(i)); \
    sum += SUM_OF_FOUR(c); \
    BYTES_PUT(words, (at) + i / 4) \
  }
