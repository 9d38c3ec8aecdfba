// Products of halves, two at a time (numeric contract, ARCHITECTURE.md).

// Reinterprets the bits; costs nothing.
fn pair_of(bits: u32) -> vec2<f16> { return vec2<f16>(unpack2x16float(bits)); }

// (w1 - E0M_MIDDLE) / E0M_DIVISOR, from the bits of w1 / E0M_DIVISOR.
fn centered(bits: u32) -> vec2<f16> { return pair_of(bits) - vec2<f16>(f16(E0M_MIDDLE / E0M_DIVISOR)); }

// Adds up four products of pairs of halves with the pairs of a.
fn chain(a: vec4<u32>, w0: u32, w1: u32, w2: u32, w3: u32) -> f32 {
  let d = fma(pair_of(a.w), centered(w3),
      fma(pair_of(a.z), centered(w2), fma(pair_of(a.y), centered(w1), pair_of(a.x) * centered(w0))));
  return f32(d.x) + f32(d.y);
}

// The same for four columns, whose pairs are in the elements of a vector.
fn chains_of(a: vec4<u32>, w0: vec4<u32>, w1: vec4<u32>, w2: vec4<u32>, w3: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(
    chain(a, w0.x, w1.x, w2.x, w3.x),
    chain(a, w0.y, w1.y, w2.y, w3.y),
    chain(a, w0.z, w1.z, w2.z, w3.z),
    chain(a, w0.w, w1.w, w2.w, w3.w),
  );
}
