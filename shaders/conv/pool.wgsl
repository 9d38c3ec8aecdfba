// y = the maximum, mean (MEAN) or p-norm (NORM) of the elements of x in a window, where it lies
// inside x. With PADDED, the mean also counts the padding, up to end_h and end_w. A work-item
// computes two neighbouring results.
fn element(i: u32) -> ELEM {
  let x0 = i32(i % p.out_w * SW) - p.pad_w;
  let y0 = i32(i / p.out_w % p.out_h * SH) - p.pad_h;
  let plane = i / p.out_w / p.out_h * p.in_h;
#ifdef MEAN
  var s = ELEM(0);
#else
#ifdef NORM
  var s = ELEM(0);
#else
  var s = least();
#endif
#endif
  var taps = 0u;
  for (var ky = 0u; ky < KH; ky++) {
    let iy = y0 + i32(ky * DH);
    for (var kx = 0u; kx < KW; kx++) {
      let ix = x0 + i32(kx * DW);
#ifdef PADDED
      if (iy < p.end_h && ix < p.end_w) { taps++; }
#endif
      if (u32(iy) >= p.in_h || u32(ix) >= p.in_w) { continue; }
      let e = x_at((plane + u32(iy)) * p.in_w + u32(ix));
#ifdef MEAN
      s += e;
#else
#ifdef NORM
      if (NORM == 1u) { s += abs(e); } else if (NORM == 2u) { s += e * e; } else { s += signed_pow(abs(e), f32(NORM)); }
#else
      s = larger(s, e);
#endif
#endif
#ifndef PADDED
      taps++;
#endif
    }
  }
#ifdef MEAN
  s /= f32(max(taps, 1u));
#endif
#ifdef NORM
  if (NORM == 2u) { s = sqrt_of(s); } else if (NORM > 2u) { s = signed_pow(s, 1.0 / f32(NORM)); }
#endif
  return s;
}

@compute @workgroup_size(WG)
fn pool(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
