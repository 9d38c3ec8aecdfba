// A block of values as signed bytes, four to a word: v / a to the nearest, ties to even, where a is the largest magnitude of the block / 127. They
// stand as the codes of an E0M weight do (common/e0m): of eight places 0 4 1 5 and 2 6 3 7 in the bytes of a word, with PER4 of four places
// 0 2 1 3. Who includes this says what the four values from place i of the block on are: FOUR(i).
// TO_BYTES puts `count` of them into words[at ..], and says a and the sum of the bytes.
#define BYTES_OF(v) convert_int4(rint((v) * inverse))
#define BYTES_WORD(a, b, c, d) as_uint(((a) & 255) | ((b) & 255) << 8 | ((c) & 255) << 16 | (d) << 24)
#define FOUR_SUM(c) ((c).x + (c).y + ((c).z + (c).w))
#define FOUR_MOST(v) fmax(fmax((v).x, (v).y), fmax((v).z, (v).w))
#ifdef PER4
#define BYTES_STEP 4
#define BYTES_PUT(words, at) \
    words[at] = BYTES_WORD(c.x, c.z, c.y, c.w);
#else
#define BYTES_STEP 8
#define BYTES_PUT(words, at) \
    int4 d = BYTES_OF(FOUR(i + 4)); \
    sum += FOUR_SUM(d); \
    words[at] = BYTES_WORD(c.x, d.x, c.y, d.y); \
    words[(at) + 1] = BYTES_WORD(c.z, d.z, c.w, d.w);
#endif
#define TO_BYTES(count, words, at) \
  float most = 0.0f; \
  int sum = 0; \
  uint i = 0; \
  for (; i < (count); i += 4) { \
    float4 a = fabs(FOUR(i)); \
    most = fmax(most, FOUR_MOST(a)); \
  } \
  float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f; \
  i = 0; \
  for (; i < (count); i += BYTES_STEP) { \
    int4 c = BYTES_OF(FOUR(i)); \
    sum += FOUR_SUM(c); \
    BYTES_PUT(words, (at) + i / 4) \
  }
