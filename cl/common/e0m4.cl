// E0M4 and E0M8 words (src/quant/e0m.rs): PER codes of BITS bits. Code k is bit field k / 2 + (k % 2) * PER / 2.
#define PER (32 / BITS)
#define E0M_TOP (23 - BITS)
#define E0M_MASK (((1u << BITS) - 1u) << E0M_TOP)

// w1 of the code whose lowest bit is `bit`, a constant: one shift and one AND-OR on the bits of a float.
inline float e0m_level(uint word, int bit) {
  uint moved = bit <= E0M_TOP ? word << (E0M_TOP - bit) : word >> (bit - E0M_TOP);
  return as_float((moved & E0M_MASK) | 0x40000000u);
}

// Levels of weights 2j and 2j + 1.
inline float2 e0m_pair(uint word, int j) {
  return (float2)(e0m_level(word, j * BITS), e0m_level(word, j * BITS + 16));
}
