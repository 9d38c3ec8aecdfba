// E0M4 and E0M8 words (src/quant/e0m.rs): PER codes of BITS bits. Code k is bit field k / 2 + (k % 2) * PER / 2.
#define PER (32 / BITS)
#define E0M_TOP (23 - BITS)
#define E0M_MASK (((1u << BITS) - 1u) << E0M_TOP)

// Bits of w1 of weight k, a constant: one shift and one AND-OR; `word` may be a vector.
#define E0M_FIELD(k) (((k) / 2 + (k) % 2 * (PER / 2)) * BITS)
#define E0M_LEVEL(word, k) \
  (((E0M_FIELD(k) <= E0M_TOP ? (word) << (uint)(E0M_TOP - E0M_FIELD(k)) : (word) >> (uint)(E0M_FIELD(k) - E0M_TOP)) & E0M_MASK) | 0x40000000u)

// Finite halves in the low 16 bits of each element, as floats, by integer arithmetic: CPU compilers make vectors of it.
#define E0M_HALF(type, h) (as_##type((((h) & 0x7FFFu) << 13u) | (((h) & 0x8000u) << 16u)) * 0x1p112f)
