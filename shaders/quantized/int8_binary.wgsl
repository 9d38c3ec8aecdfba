// y = a + b, a - b (SUB) or a * b (MUL) for bytes whose scales may differ, requantized to bytes. A
// work-item computes one word.
//
// Tables hold the term of each byte of a, then of b: integers with FIXED, otherwise floats,
// followed by the smallest float of each result. Operands may broadcast along the leading axis, and
// along all other axes but the last together.
#include "common/int8"

fn result(a: i32, b: i32) -> i32 {
#ifdef FIXED
  let s = bitcast<i32>(tables[u32(a + 128)]);
  let t = bitcast<i32>(tables[u32(b + 384)]);
#else
  let s = bitcast<f32>(tables[u32(a + 128)]);
  let t = bitcast<f32>(tables[u32(b + 384)]);
#endif
#ifdef MUL
  let v = s * t;
#else
#ifdef SUB
  let v = s - t;
#else
  let v = s + t;
#endif
#endif
#ifdef FIXED
  return within(multiplied(v, p.mantissa, p.shift), p.zero, p.low, p.high);
#else
  let q = guess(v, p.inverse, p.zero, p.low, p.high);
  return settled(v, q, tables[least_of(q) + 512u], tables[next_of(q) + 512u]);
#endif
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
