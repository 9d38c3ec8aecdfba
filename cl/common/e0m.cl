// E0M words (src/quant/mod.rs). Kernels walk along K in steps of PER weights. The codes of a step
// are in a word of the plane of high bits, which has HIGH bits of each code if it does not have all
// 4 or 8, and, with LOW, in a word of the plane of low bits. A scale applies to GROUP * SPAN
// weights.
#ifdef PER4
#define PER 4
#else
#define PER 8
#endif
#ifndef SPAN
#define SPAN 1
#endif
// Rows of words of this many steps.
#define E0M_ROWS(steps) ((steps) * (PER * BITS) / 32)

// The row of a plane that has the words of step t, and the shift that moves the codes of the step
// to the bits of the first step.
#define E0M_ROW(t, width, first) ((t) / 4 * BITS + first + (t) % 4 * width / 4)
#define E0M_SHIFT(t, width) ((t) % (4 / width) * (4 * width))
#ifdef HIGH
#define E0M_HIGH(load, at, t, panel) (load((at) + E0M_ROW(t, HIGH, 0) * (panel)) >> E0M_SHIFT(t, HIGH))
#define E0M_WIDTH HIGH
#else
#define E0M_HIGH(load, at, t, panel) load((at) + (t) * (panel))
#define E0M_WIDTH BITS
#endif
#ifdef LOW
#define E0M_LOW(load, at, t, panel) (load((at) + E0M_ROW(t, LOW, HIGH) * (panel)) >> E0M_SHIFT(t, LOW))
#else
#define E0M_LOW(load, at, t, panel) 0
#endif

// The bits of w1 of weight k (a constant) of a step: one shift and one AND-OR for each plane. Words
// may be vectors. Code k is bit field k / 2 * width + k % 2 * 16 of a plane's word.
#define E0M_FIELD(k, width) ((k) / 2 * (width) + (k) % 2 * 16)
#define E0M_MOVE(word, from, to) ((from) <= (to) ? (word) << (uint)((to) - (from)) : (word) >> (uint)((from) - (to)))
#define E0M_PART(word, k, width, to) (E0M_MOVE(word, E0M_FIELD(k, width), to) & (((1u << (width)) - 1u) << (to)))
#ifdef LOW
#define E0M_LEVEL(word, low, k) (E0M_PART(word, k, HIGH, 23 - HIGH) | E0M_PART(low, k, LOW, 23 - BITS) | 0x40000000u)
#else
#define E0M_LEVEL(word, low, k) (E0M_PART(word, k, E0M_WIDTH, 23 - E0M_WIDTH) | 0x40000000u)
#endif

// Nested scales (src/quant/mod.rs): blocks of 256 weights have NESTED groups, whose entries take
// ENTRY bits. Integers have 6 bits with SIX. E0M_SCALE_ROWS: rows of words of the scales.
#ifdef NESTED
#ifdef MINIMA
#define E0M_HALF_ROWS(blocks) (blocks)
#define E0M_BLOCK_HALVES(load, at, block, panel) load((at) + (block) * (panel))
#else
#define E0M_HALF_ROWS(blocks) (((blocks) + 1) / 2)
#define E0M_BLOCK_HALVES(load, at, block, panel) (load((at) + (block) / 2 * (panel)) >> (uint)((block) % 2 * 16))
#endif
#ifdef SIX
#define E0M_WORDS 3
#define E0M_PER_WORD (24 / ENTRY)
// The last entries are in the high bytes of three words.
#define E0M_JOIN(a, b, c) ((a) >> 24u | ((b) >> 16u & 0xFF00u) | ((c) >> 8u & 0xFF0000u))
#define E0M_ENTRY_WORD(load, at, row, panel) \
  ((row) == 3 ? E0M_JOIN(load(at), load((at) + (panel)), load((at) + 2 * (panel))) : load((at) + (row) * (panel)))
#else
#define E0M_WORDS 4
#define E0M_PER_WORD (32 / ENTRY)
#define E0M_ENTRY_WORD(load, at, row, panel) load((at) + (row) * (panel))
#endif
#define E0M_SCALE_ROWS(k) (E0M_HALF_ROWS((k) / 256) + (k) / 256 * E0M_WORDS)
// Loads the halves and the entry of group g of k weights, whose scales start at `at`.
#define E0M_NESTED(halves, entry, load, at, g, panel, k) { \
    uint e0m_block = (g) / NESTED, e0m_group = (g) % NESTED; \
    uint e0m_row = E0M_HALF_ROWS((k) / 256) + e0m_block * E0M_WORDS; \
    halves = E0M_BLOCK_HALVES(load, at, e0m_block, panel); \
    entry = E0M_ENTRY_WORD(load, (at) + e0m_row * (panel), e0m_group / E0M_PER_WORD, panel) \
        >> (e0m_group % E0M_PER_WORD * ENTRY); \
  }
// (v - middle) / 2^n of an integer v below 2^23, by the mantissa of a float: GPUs convert few
// integers per cycle. Divided by 2^14, a factor is what it was before it was stored. With the
// exponent of 2^-n instead of the product, NVIDIA's compiler loads words later.
#define E0M_INTEGER(type, v, middle, n) \
  ((CAT(as_, type)((v) | 0x4B000000u) - (0x1p23f + (middle))) * (1.0f / (float)(1 << (n))))
#define E0M_SCALE(type, v, middle) E0M_INTEGER(type, v, middle, 15 - BITS)
// Scale and rest from the factors d and m of a block. The weight of w1 has no rest without minima.
#ifdef MINIMA
#define E0M_INTEGERS ((1u << (ENTRY / 2)) - 1u)
#define E0M_AFFINE(type, scale, rest, d, m, entry) { \
    scale = (d) * E0M_SCALE(type, (entry) & E0M_INTEGERS, 0.0f); \
    rest = -(m) * E0M_INTEGER(type, (entry) >> (uint)(ENTRY / 2) & E0M_INTEGERS, 0.0f, 14); \
  }
#define E0M_WEIGHT(w1, scale, rest) (((w1) - 2.0f) * (scale) + (rest))
#else
// 6 bits are stored with an offset, 8 bits in two's complement.
#ifdef SIX
#define E0M_STORED(type, entry) E0M_SCALE(type, (entry) & 63u, 32.0f)
#else
#define E0M_STORED(type, entry) E0M_SCALE(type, ((entry) ^ 0x80u) & 0xFFu, 128.0f)
#endif
#define E0M_AFFINE(type, scale, rest, d, m, entry) { \
    scale = (d) * E0M_STORED(type, entry); \
    rest = (type)(0.0f); \
  }
#define E0M_WEIGHT(w1, scale, rest) (((w1) - 3.0f) * (scale))
#endif
#define E0M_DECODE(type, scale, rest, halves, entry) \
  E0M_AFFINE(type, scale, rest, E0M_HALF(type, halves), E0M_HALF(type, (halves) >> 16u), entry)
#define E0M_SCALES(uints, floats, load, at, g, panel, k) \
  floats scale, rest; \
  { \
    uints halves, entry; \
    E0M_NESTED(halves, entry, load, at, g, panel, k) \
    E0M_DECODE(floats, scale, rest, halves, entry) \
  }
#else
#define E0M_SCALE_ROWS(k) (((k) + GROUP * SPAN - 1) / (GROUP * SPAN))
#define E0M_WEIGHT(w1, scale, rest) ((w1) * (scale) + (rest))
#endif

// Converts finite halves in the low 16 bits of each element to floats by integer arithmetic, which
// CPU compilers vectorize.
#define E0M_HALF(type, h) (CAT(as_, type)((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)

// The bits of w1 as halves, divided by a power of two that the exponent sets: weights 2k and 2k + 1
// of a step in the two halves of each word, with the operations of a single weight.
#define E0M_BOTH(word, k, width, to) (E0M_MOVE(word, (k) * (width), to) & ((((1u << (width)) - 1u) << (to)) * 0x10001u))
#ifdef LOW
#define E0M_HALVES(word, low, k, exponent) \
  (E0M_BOTH(word, k, HIGH, 10 - HIGH) | E0M_BOTH(low, k, LOW, 10 - BITS) | (exponent))
#else
#define E0M_HALVES(word, low, k, exponent) (E0M_BOTH(word, k, E0M_WIDTH, 10 - E0M_WIDTH) | (exponent))
#endif
// w1 / 16: a sum of eight products of (w1 - b) / 16 with any halves stays finite.
#define E0M_UNIT 16.0f
#define E0M_PAIR(word, low, k) E0M_HALVES(word, low, k, 0x30003000u)
