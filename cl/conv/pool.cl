// y = the maximum, mean (MEAN) or p-norm (NORM) of the elements of x in a window, where it lies
// inside x. With PADDED, the mean also counts the padding, up to end_h and end_w. A work-item
// computes two neighbouring results.
#ifdef NORM
#define TERM(v) (NORM == 1 ? fabs(v) : NORM == 2 ? (v) * (v) : pow(fabs(v), (float)NORM))
#endif

KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1);
    int x0 = (int)(i % p.out_w * SW) - p.pad_w, y0 = (int)(i / p.out_w % p.out_h * SH) - p.pad_h;
    uint plane = i / p.out_w / p.out_h * p.in_h;
#ifdef MEAN
    ELEM s = 0;
#else
#ifdef NORM
    ELEM s = 0;
#else
    ELEM s = LEAST;
#endif
#endif
    uint taps = 0;
    for (uint ky = 0; ky < KH; ky++) {
      int iy = y0 + (int)(ky * DH);
      for (uint kx = 0; kx < KW; kx++) {
        int ix = x0 + (int)(kx * DW);
#ifdef PADDED
        if (iy < p.end_h && ix < p.end_w) taps++;
#endif
        if ((uint)iy >= p.in_h || (uint)ix >= p.in_w) continue;
        ELEM e = x_at((plane + (uint)iy) * p.in_w + (uint)ix);
#ifdef MEAN
        s += e;
#else
#ifdef NORM
        s += TERM(e);
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
    s /= (float)max(taps, 1u);
#endif
#ifdef NORM
    s = NORM == 1 ? s : NORM == 2 ? sqrt(s) : pow(s, 1.0f / NORM);
#endif
    v[h] = s;
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
