// E0M4 and E0M8 words (src/quant/e0m.rs): PER codes of BITS bits. Code k is bit field k / 2 + (k % 2) * PER / 2.
const PER: u32 = 32u / BITS;
const E0M_TOP: u32 = 23u - BITS;
const E0M_MASK: u32 = ((1u << BITS) - 1u) << E0M_TOP;

// w1 of weight k of four words: shifts and an AND-OR on the bits of a float.
fn e0m_levels(words: vec4<u32>, k: u32) -> vec4<f32> {
  let field = (k / 2u + k % 2u * (PER / 2u)) * BITS;
  return bitcast<vec4<f32>>((((words >> vec4<u32>(field)) << vec4<u32>(E0M_TOP)) & vec4<u32>(E0M_MASK)) | vec4<u32>(0x40000000u));
}

// Scale (x) and bias (y) of four columns, each from a packed pair of halves.
struct E0mScales { scale: vec4<f32>, bias: vec4<f32> }

fn e0m_scales(pairs: vec4<u32>) -> E0mScales {
  let a = unpack2x16float(pairs.x);
  let b = unpack2x16float(pairs.y);
  let c = unpack2x16float(pairs.z);
  let d = unpack2x16float(pairs.w);
  return E0mScales(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
}
