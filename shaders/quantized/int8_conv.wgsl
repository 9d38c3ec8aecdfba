// Convolution of bytes [n, in_h, in_w, 4 * words] with weights in panels of four output channels,
// each of KH * KW * depth words; also a matmul. Output words of group g read `depth` input words
// from g * depth on. A work-item computes one word for each of RUN neighbouring windows.
#include "common/dot"
#include "common/int8"

fn scaled(sum: i32, i: u32) -> i32 {
#ifdef FIXED
  return within(multiplied(sum, bitcast<i32>(factors[i]), bitcast<i32>(factors[4u * p.outputs + i])), p.zero, p.low,
      p.high);
#else
  return by_float(sum, bitcast<f32>(factors[i]), p.zero, p.low, p.high);
#endif
}

@compute @workgroup_size(WG)
fn int8_conv(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = (group.x * WG + lid) * RUN;
  let o = group.y;
  if (first >= p.rows) { return; }
  let part = o / p.group * p.depth;
  let fill = u32(p.x_zero & 255) * 0x01010101u;
  var at = o * KH * KW * p.depth * 4u;
  var sums: array<vec4<i32>, RUN>;
  var y0: array<i32, RUN>;
  var x0: array<i32, RUN>;
  var image: array<u32, RUN>;
  let start = vec4<i32>(vec4<u32>(bias[4u * o], bias[4u * o + 1u], bias[4u * o + 2u], bias[4u * o + 3u]));
  for (var r = 0u; r < RUN; r++) {
    let row = min(first + r, p.rows - 1u);
    let line = row / p.out_w;
    sums[r] = start;
    x0[r] = i32(row % p.out_w * SW) - p.pad_w;
    y0[r] = i32(line % p.out_h * SH) - p.pad_h;
    image[r] = line / p.out_h * p.in_h;
  }
  for (var ky = 0u; ky < KH; ky++) {
    for (var kx = 0u; kx < KW; kx++) {
      var from_: array<u32, RUN>;
      var inside: array<bool, RUN>;
      for (var r = 0u; r < RUN; r++) {
        let iy = y0[r] + i32(ky * DH);
        let ix = x0[r] + i32(kx * DW);
        inside[r] = u32(iy) < p.in_h && u32(ix) < p.in_w;
        from_[r] = select(part, ((image[r] + u32(iy)) * p.in_w + u32(ix)) * p.words + part, inside[r]);
      }
      for (var d = 0u; d < p.depth; d++) {
        let words = vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]);
        for (var r = 0u; r < RUN; r++) {
          let a = select(fill, x[from_[r] + d], inside[r]);
          sums[r] = dots(sums[r], words, a);
        }
        at += 4u;
      }
    }
  }
  let c = 4u * o;
  for (var r = 0u; r < RUN; r++) {
    if (first + r >= p.rows) { return; }
    let s = sums[r];
    let v = vec4<i32>(scaled(s.x, c), scaled(s.y, c + 1u), scaled(s.z, c + 2u), scaled(s.w, c + 3u));
    y[(first + r) * p.outputs + o] = word_of(v);
  }
}
