// y = a + b, a - b (SUB) or a * b (MUL) for bytes with scales of their own, rounded to bytes. Operands may be repeated along the leading axis and
// along all others but the last. A work-item computes one word.
#include "common/int8"
const HEADROOM = 20u;

fn result(a: i32, b: i32) -> i32 {
  let u = a - p.a_zero;
  let v = b - p.b_zero;
#ifdef MUL
  let sum = u * v;
#else
  let s = multiplied(u << HEADROOM, p.a_mantissa, p.a_shift);
  let t = multiplied(v << HEADROOM, p.b_mantissa, p.b_shift);
#ifdef SUB
  let sum = s - t;
#else
  let sum = s + t;
#endif
#endif
  return within(multiplied(sum, p.mantissa, p.shift), p.zero, p.low, p.high);
}

@compute @workgroup_size(WG)
fn int8_binary(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let word = i % p.words;
  let middle = i / p.words % p.inner;
  let plane = i / p.words / p.inner;
  let u = four_bytes(a[word + middle * p.a_words + plane * p.a_rows]);
  let v = four_bytes(b[word + middle * p.b_words + plane * p.b_rows]);
  y[i] = word_of(vec4<i32>(result(u.x, v.x), result(u.y, v.y), result(u.z, v.z), result(u.w, v.w)));
}
