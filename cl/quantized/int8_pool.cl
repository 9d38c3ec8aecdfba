// Maxima of the bytes of windows, their means (MEAN), or their sums times a factor for the number
// of elements (SUM). Only elements inside x are read. With PADDED, padding up to end_h and end_w
// counts as elements with the real value 0. A work-item computes one word.
#include "common/int8"

#ifdef MEAN
#define RESULT(v) clamp(((v) + ((v) > 0 ? (int)taps / 2 : -((int)taps / 2))) / max((int)taps, 1), p.low, p.high)
#else
#ifdef SUM
#define RESULT(v) SCALED(v, max(taps, 1u) - 1, KH * KW, p.zero, p.low, p.high)
#else
#define RESULT(v) clamp(v, p.low, p.high)
#endif
#endif

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, line = row / p.out_w;
  int x0 = (int)(row % p.out_w * SW) - p.pad_w, y0 = (int)(line % p.out_h * SH) - p.pad_h;
  uint image = line / p.out_h * p.in_h, taps = 0, inside = 0;
#ifdef MEAN
  int4 s = (int4)(0);
#else
#ifdef SUM
  int4 s = (int4)(0);
#else
  int4 s = (int4)(-128);
#endif
#endif
  for (uint ky = 0; ky < KH; ky++) {
    int iy = y0 + (int)(ky * DH);
    for (uint kx = 0; kx < KW; kx++) {
      int ix = x0 + (int)(kx * DW);
#ifdef PADDED
      if (iy < p.end_h && ix < p.end_w) taps++;
#endif
      if ((uint)iy >= p.in_h || (uint)ix >= p.in_w) continue;
      int4 v = four_bytes(x[((image + (uint)iy) * p.in_w + (uint)ix) * p.words + word]);
#ifdef MEAN
      s += v;
#ifdef PADDED
      inside++;
#endif
#else
#ifdef SUM
      s += v - p.x_zero;
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
  s += (int)(taps - inside) * p.x_zero;
#endif
#endif
  y[i] = word_of((int4)(RESULT(s.x), RESULT(s.y), RESULT(s.z), RESULT(s.w)));
}
