// E0M4 and E0M8 words (src/quant/e0m.rs): PER codes of BITS bits. Code k is bit field k / 2 + (k % 2) * PER / 2.
const PER: u32 = 32u / BITS;
const E0M_TOP: u32 = 23u - BITS;
const E0M_MASK: u32 = ((1u << BITS) - 1u) << E0M_TOP;

// w1 of the code whose lowest bit is `bit`: a shift and an AND-OR on the bits of a float.
fn e0m_level(word: u32, bit: u32) -> f32 {
  return bitcast<f32>((((word >> bit) << E0M_TOP) & E0M_MASK) | 0x40000000u);
}

// Levels of weights 2j and 2j + 1.
fn e0m_pair(word: u32, j: u32) -> vec2<f32> {
  return vec2<f32>(e0m_level(word, j * BITS), e0m_level(word, j * BITS + 16u));
}
