// y[n, m, oy, ox] = bias[m] + sum over ci, ky, kx of w[m, ci, ky, kx] * x[n, group + ci, oy * SH + ky * DH - pad_h,
// ox * SW + kx * DW - pad_w], as far as it lies inside x. A work-item computes TILE channels of a group by RUN results of a row.
#define V CAT(float, RUN)
#define I CAT(int, RUN)
#define U CAT(uint, RUN)
#define LANES2 0, 1
#define LANES4 LANES2, 2, 3
#define LANES8 LANES4, 4, 5, 6, 7
#define LANES16 LANES8, 8, 9, 10, 11, 12, 13, 14, 15
#define LANES (I)(CAT(LANES, RUN))
#define TAPS (KH * KW)
#ifdef PACKED
#define WEIGHT(ci, tap, t) w_at(((get_group_id(1) * p.channels + (ci)) * TAPS + (tap)) * TILE + (t))
#else
#define WEIGHT(ci, tap, t) w_at(((group * p.rows + min(row + (t), p.rows - 1)) * p.channels + (ci)) * TAPS + (tap))
#endif
// Zeros where a column is outside of the row.
#ifdef INSIDE
#define KEEP(v, ix) v
#else
#define KEEP(v, ix) select((V)(0.0f), v, CAT(as_int, RUN)(CAT(as_uint, RUN)((I)(ix) + SW * LANES) < (U)(p.in_w)))
#endif

KERNEL {
  uint runs = (p.out_w + RUN - 1) / RUN;
  if (get_global_id(0) >= p.out_h * runs) return;
  uint oy = get_global_id(0) / runs, ox = get_global_id(0) % runs * RUN;
  uint tile = p.first + get_group_id(1), group = tile / p.tiles, row = tile % p.tiles * TILE;
  int y0 = (int)(oy * SH) - p.pad_h, x0 = (int)(ox * SW) - p.pad_w;
  V sum[TILE];
#pragma unroll
  for (uint t = 0; t < TILE; t++) {
#ifdef HAS_BIAS
    sum[t] = (V)(bias_at(group * p.rows + min(row + t, p.rows - 1)));
#else
    sum[t] = (V)(0.0f);
#endif
  }
  for (uint ci = 0; ci < p.channels; ci++) {
    for (uint ky = 0; ky < KH; ky++) {
      int iy = y0 + (int)(ky * DH);
      if ((uint)iy >= p.in_h) continue;
      int start = (int)(get_group_id(2) * p.image + ((group * p.channels + ci) * p.in_h + (uint)iy) * p.in_w);
      for (uint kx = 0; kx < KW; kx++) {
        int ix = x0 + (int)(kx * DW), at = start + ix;
        V v;
        // Whole vectors wherever they lie inside of x; what they have of other rows is not kept.
#ifdef UNIT
        if (at >= 0 && at + RUN <= p.total) v = KEEP(x_run(RUN, at), ix);
#else
#ifdef TWO
        if (at >= 0 && at + 2 * RUN <= p.total) {
          V a = x_run(RUN, at), b = x_run(RUN, at + RUN);
          v = KEEP((V)(a.even, b.even), ix);
        }
#else
        if (false) {}
#endif
#endif
        else {
          float lane[RUN];
          for (uint i = 0; i < RUN; i++) {
            int c = ix + (int)(i * SW);
            lane[i] = (uint)c < p.in_w ? x_at(start + c) : 0.0f;
          }
          v = CAT(vload, RUN)(0, lane);
        }
#pragma unroll
        for (uint t = 0; t < TILE; t++) sum[t] += WEIGHT(ci, ky * KW + kx, t) * v;
      }
    }
  }
  uint count = min((uint)RUN, p.out_w - ox);
#pragma unroll
  for (uint t = 0; t < TILE; t++) {
    if (row + t >= p.rows) continue;
    uint m = group * p.rows + row + t;
    uint to = ((get_group_id(2) * p.outputs + m) * p.out_h + oy) * p.out_w + ox;
    if (count == RUN) y_run(RUN, to, sum[t]);
    else {
      float lane[RUN];
      CAT(vstore, RUN)(sum[t], 0, lane);
      for (uint i = 0; i < count; i++) y_put(to + i, lane[i]);
    }
  }
}
