// Maxima of the bytes of windows, their means (MEAN), or their sums times a factor for the number
// of elements (SUM). Only elements inside x are read. With PADDED, padding up to end_h and end_w
// counts as elements with the real value 0. A work-item computes one word.
#include "common/int8"

fn result(v: i32, taps: u32) -> i32 {
#ifdef MEAN
  let count = i32(taps);
  let sum = v + select(-(count / 2), count / 2, v > 0);
  return clamp(sum / max(count, 1), p.low, p.high);
#else
#ifdef SUM
  let n = max(taps, 1u) - 1u;
#ifdef FIXED
  return within(multiplied(v, bitcast<i32>(factors[n]), bitcast<i32>(factors[KH * KW + n])), p.zero, p.low, p.high);
#else
  return by_float(v, bitcast<f32>(factors[n]), p.zero, p.low, p.high);
#endif
#else
  return clamp(v, p.low, p.high);
#endif
#endif
}

@compute @workgroup_size(WG)
fn int8_pool(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let word = i % p.words;
  let row = i / p.words;
  let line = row / p.out_w;
  let x0 = i32(row % p.out_w * SW) - p.pad_w;
  let y0 = i32(line % p.out_h * SH) - p.pad_h;
  let image = line / p.out_h * p.in_h;
  var taps = 0u;
  var inside = 0u;
#ifdef MEAN
  var s = vec4<i32>(0);
#else
#ifdef SUM
  var s = vec4<i32>(0);
#else
  var s = vec4<i32>(-128);
#endif
#endif
  for (var ky = 0u; ky < KH; ky++) {
    let iy = y0 + i32(ky * DH);
    for (var kx = 0u; kx < KW; kx++) {
      let ix = x0 + i32(kx * DW);
#ifdef PADDED
      if (iy < p.end_h && ix < p.end_w) { taps++; }
#endif
      if (u32(iy) >= p.in_h || u32(ix) >= p.in_w) { continue; }
      let v = four_bytes(x[((image + u32(iy)) * p.in_w + u32(ix)) * p.words + word]);
#ifdef MEAN
      s += v;
#ifdef PADDED
      inside++;
#endif
#else
#ifdef SUM
      s += v - vec4<i32>(p.x_zero);
#else
      s = max(s, v);
#endif
#endif
#ifndef PADDED
      taps++;
#endif
    }
  }
  // Padding that counts has the real value 0, the integer x_zero.
#ifdef MEAN
#ifdef PADDED
  s += vec4<i32>(i32(taps - inside) * p.x_zero);
#endif
#endif
  y[i] = word_of(vec4<i32>(result(s.x, taps), result(s.y, taps), result(s.z, taps), result(s.w, taps)));
}
