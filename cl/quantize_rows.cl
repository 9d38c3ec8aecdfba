// Rows of x become signed bytes, four to a word of y, in blocks of BLOCK places, of which the last of a row may be shorter: x / a to the nearest,
// ties to even, where a is the largest magnitude of the block / 127. `factors` takes, of each block, a and a times the sum of its bytes.
// The bytes stand as the codes of an E0M weight do (common/e0m): of eight places 0 4 1 5 and 2 6 3 7 in the bytes of a word, with PER4 of
// four places 0 2 1 3. A work-item makes a block, with WIDE by 16 places at a time.
#ifdef PER4
#define PER 4
#else
#define PER 8
#endif

KERNEL {
  uint at = get_global_id(0), blocks = (p.k + BLOCK - 1) / BLOCK;
  if (at >= p.rows * blocks) return;
  uint first = at % blocks * BLOCK, from = at / blocks * p.k + first, count = min((uint)BLOCK, p.k - first);
  float most = 0.0f;
  uint i = 0;
  int sum = 0;
#ifdef WIDE
  float16 high = (float16)(0.0f);
  for (; i + 16 <= count; i += 16) high = fmax(high, fabs(x_run(16, from + i)));
  float8 h8 = fmax(high.lo, high.hi);
  float4 h4 = fmax(h8.lo, h8.hi);
  most = fmax(fmax(h4.x, h4.y), fmax(h4.z, h4.w));
#endif
  for (; i < count; i += 4) {
    float4 a = fabs(x_at4((from + i) / 4));
    most = fmax(most, fmax(fmax(a.x, a.y), fmax(a.z, a.w)));
  }
  float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
  i = 0;
#ifdef WIDE
  int16 sums = (int16)(0);
  for (; i + 16 <= count; i += 16) {
    int16 c = convert_int16(rint(x_run(16, from + i) * inverse));
    sums += c;
    char16 b = convert_char16(c);
#ifdef PER4
    b = b.s021346578a9bcedf;
#else
    b = b.s041526378c9daebf;
#endif
    vstore4(as_uint4(b), 0, y + (from + i) / 4);
  }
  int8 s8 = sums.lo + sums.hi;
  int4 s4 = s8.lo + s8.hi;
  sum = s4.x + s4.y + s4.z + s4.w;
#endif
#define CODES_OF(i) convert_int4(rint(x_at4((from + (i)) / 4) * inverse))
#define ADD(c) sum += c.x + c.y + c.z + c.w
#define WORD(c0, c1, c2, c3) as_uint((c0 & 255) | (c1 & 255) << 8 | (c2 & 255) << 16 | c3 << 24)
  for (; i < count; i += PER) {
    int4 c = CODES_OF(i);
    ADD(c);
#ifdef PER4
    y[(from + i) / 4] = WORD(c.x, c.z, c.y, c.w);
#else
    int4 d = CODES_OF(i + 4);
    ADD(d);
    y[(from + i) / 4] = WORD(c.x, d.x, c.y, d.y);
    y[(from + i) / 4 + 1] = WORD(c.z, d.z, c.w, d.w);
#endif
  }
  factors[2 * at] = as_uint(scale);
  factors[2 * at + 1] = as_uint(scale * (float)sum);
}
