// Depthwise convolution of bytes [n, in_h, in_w, 4 * words] with weights [KH, KW, 4 * words]. A
// work-item computes one word.
#include "common/int8"

fn scaled(sum: i32, i: u32) -> i32 {
#ifdef FIXED
  return within(multiplied(sum, bitcast<i32>(factors[i]), bitcast<i32>(factors[4u * p.words + i])), p.zero, p.low,
      p.high);
#else
  return by_float(sum, bitcast<f32>(factors[i]), p.zero, p.low, p.high);
#endif
}

@compute @workgroup_size(WG)
fn int8_depthwise(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.rows * p.words) { return; }
  let row = i / p.words;
  let word = i % p.words;
  let line = row / p.out_w;
  let c = 4u * word;
  let x0 = i32(row % p.out_w * SW) - p.pad_w;
  let y0 = i32(line % p.out_h * SH) - p.pad_h;
  let image = line / p.out_h * p.in_h;
  let fill = u32(p.x_zero & 255) * 0x01010101u;
  var s = vec4<i32>(vec4<u32>(bias[c], bias[c + 1u], bias[c + 2u], bias[c + 3u]));
  for (var ky = 0u; ky < KH; ky++) {
    let iy = y0 + i32(ky * DH);
    for (var kx = 0u; kx < KW; kx++) {
      let ix = x0 + i32(kx * DW);
      let inside = u32(iy) < p.in_h && u32(ix) < p.in_w;
      let from_ = select(0u, ((image + u32(iy)) * p.in_w + u32(ix)) * p.words + word, inside);
      let a = select(fill, x[from_], inside);
      s += four_bytes(a) * four_bytes(w[(ky * KW + kx) * p.words + word]);
    }
  }
  y[i] = word_of(vec4<i32>(scaled(s.x, c), scaled(s.y, c + 1u), scaled(s.z, c + 2u), scaled(s.w, c + 3u)));
}
