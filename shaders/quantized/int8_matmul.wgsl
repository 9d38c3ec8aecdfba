// y[z, i, j] = sum over k of (a[z, i, k] - a_zero) * (b[z, j, k] - b_zero), requantized to bytes.
// Rows of a and b have k bytes in whole words; `tail` masks the last word. Sums for j from n on are
// 0. A work-item computes one word of a row.
#include "common/dot"
#include "common/int8"

fn result(sum: i32, j: u32) -> i32 {
  let kept = select(0, sum, j < p.n);
#ifdef FIXED
  return within(multiplied(kept, p.mantissa, p.shift), p.zero, p.low, p.high);
#else
  return by_float(kept, p.factor, p.zero, p.low, p.high);
#endif
}

@compute @workgroup_size(WG)
fn int8_matmul(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let i = group.x * WG + lid;
  let o = group.y;
  if (i >= p.m) { return; }
  let row = group.z * p.a_step + i * p.words;
  let at = group.z * p.b_step + min(vec4<u32>(4u * o) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.n - 1u)) * p.words;
  var sums = vec4<i32>();
  var of_b = vec4<i32>();
  var of_a = 0;
  for (var k = 0u; k < p.words; k++) {
    let mask = select(p.tail, 0xFFFFFFFFu, k + 1u < p.words);
    let v = a[row + k] & mask;
    let words = vec4<u32>(b[at.x + k], b[at.y + k], b[at.z + k], b[at.w + k]);
    sums = dots(sums, words, v);
    of_b = dots(of_b, words, 0x01010101u & mask);
    of_a += dot4I8Packed(v, 0x01010101u);
  }
  sums += p.a_zero * (vec4<i32>(p.b_zero * i32(p.k)) - of_b) - vec4<i32>(p.b_zero * of_a);
  let j = 4u * o;
  y[(group.z * p.m + i) * p.outputs + o] =
    word_of(vec4<i32>(result(sums.x, j), result(sums.y, j + 1u), result(sums.z, j + 2u), result(sums.w, j + 3u)));
}
