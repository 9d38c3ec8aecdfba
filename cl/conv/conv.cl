// y[n, m, oy, ox] = bias[m] + sum over ci, ky, kx of w[m, ci, ky, kx] * x[n, group + ci, oy * SH +
// ky * DH - pad_h, ox * SW + kx * DW - pad_w], where this lies inside x.
//
// With TRANSPOSED, x is read at (oy + pad_h - ky * DH) / SH and (ox + pad_w - kx * DW) / SW, where
// these are integers, and w is [ci, m, ky, kx].
//
// A work-item computes TILE channels of a group by RUN neighbouring results of a row; with
// TRANSPOSED, these are SW apart.
#define VECTOR CAT(ELEM, RUN)
#define INTS CAT(int, RUN)
#define UINTS CAT(uint, RUN)
#define LANES2 0, 1
#define LANES4 LANES2, 2, 3
#define LANES (INTS)(CAT(LANES, RUN))
#define TAPS (KH * KW)
#ifdef TRANSPOSED
#define WEIGHT(ci, tap, t) w_at(((group * p.channels + (ci)) * p.rows + min(row + (t), p.rows - 1)) * TAPS + (tap))
#define IN_STEP 1
#define OUT_STEP SW
#else
#ifdef PACKED
#define WEIGHT(ci, tap, t) w_at(((part * p.channels + (ci)) * TAPS + (tap)) * TILE + (t))
#else
#define WEIGHT(ci, tap, t) w_at(((group * p.rows + min(row + (t), p.rows - 1)) * p.channels + (ci)) * TAPS + (tap))
#endif
#define IN_STEP SW
#define OUT_STEP 1
#endif
// Zeros where a column is outside the row.
#ifdef INSIDE
#define ZERO_OUTSIDE(v, ix) v
#else
#define ZERO_OUTSIDE(v, ix) \
  select((VECTOR)(0), v, CAT(as_int, RUN)(CAT(as_uint, RUN)((INTS)(ix) + IN_STEP * LANES) < (UINTS)(p.in_w)))
#endif

KERNEL {
  uint each = (p.out_w + OUT_STEP - 1) / OUT_STEP, runs = (each + RUN - 1) / RUN;
  uint part = get_group_id(1), place = get_global_id(0);
  if (place >= p.out_h * OUT_STEP * runs) return;
  uint oy = place / runs / OUT_STEP, ox = place / runs % OUT_STEP + place % runs * (RUN * OUT_STEP);
  // The last columns of each step may have one result less.
  if (ox >= p.out_w) return;
  uint tile = p.first + part, group = tile / p.tiles, row = tile % p.tiles * TILE;
  VECTOR sum[TILE];
  _Pragma("unroll") for (uint t = 0; t < TILE; t++) {
#ifdef HAS_BIAS
    sum[t] = (VECTOR)(bias_at(group * p.rows + min(row + t, p.rows - 1)));
#else
    sum[t] = (VECTOR)(0);
#endif
  }
  for (uint ci = 0; ci < p.channels; ci++) {
    for (uint ky = 0; ky < KH; ky++) {
#ifdef TRANSPOSED
      int iy = (int)oy + p.pad_h - (int)(ky * DH);
      if (iy % SH != 0) continue;
      iy /= SH;
#else
      int iy = (int)(oy * SH) - p.pad_h + (int)(ky * DH);
#endif
      if ((uint)iy >= p.in_h) continue;
      int start = (int)(get_group_id(2) * p.image + ((group * p.channels + ci) * p.in_h + (uint)iy) * p.in_w);
      for (uint kx = 0; kx < KW; kx++) {
#ifdef TRANSPOSED
        int ix = (int)ox + p.pad_w - (int)(kx * DW);
        if (ix % SW != 0) continue;
        ix /= SW;
#else
        int ix = (int)(ox * SW) - p.pad_w + (int)(kx * DW);
#endif
        int at = start + ix;
        VECTOR v;
        // Whole vectors wherever they lie inside x; elements of other rows are replaced by zeros.
        if (IN_STEP == 1 && at >= 0 && at + RUN <= p.total) v = ZERO_OUTSIDE(x_run(RUN, at), ix);
        else if (IN_STEP == 2 && at >= 0 && at + 2 * RUN <= p.total) {
          VECTOR a = x_run(RUN, at), b = x_run(RUN, at + RUN);
          v = ZERO_OUTSIDE((VECTOR)(a.even, b.even), ix);
        } else {
          ELEM lane[RUN];
          for (uint i = 0; i < RUN; i++) {
            int c = ix + (int)(i * IN_STEP);
            lane[i] = (uint)c < p.in_w ? x_at(start + c) : 0;
          }
          v = CAT(vload, RUN)(0, lane);
        }
        _Pragma("unroll") for (uint t = 0; t < TILE; t++) sum[t] += WEIGHT(ci, ky * KW + kx, t) * v;
      }
    }
  }
  uint count = min((uint)RUN, (p.out_w - ox + OUT_STEP - 1) / OUT_STEP);
  for (uint t = 0; t < TILE; t++) {
    if (row + t >= p.rows) continue;
    // Selected by comparisons: an index unknown to the compiler would keep all sums in memory.
    VECTOR one = sum[0];
    _Pragma("unroll") for (uint q = 1; q < TILE; q++) one = q == t ? sum[q] : one;
    uint m = group * p.rows + row + t;
    uint to = ((get_group_id(2) * p.outputs + m) * p.out_h + oy) * p.out_w + ox;
    if (OUT_STEP == 1 && count == RUN) y_put_run(RUN, to, one);
    else {
      ELEM lane[RUN];
      CAT(vstore, RUN)(one, 0, lane);
      _Pragma("unroll") for (uint i = 0; i < RUN; i++)
        if (i < count) y_put(to + i * OUT_STEP, lane[i]);
    }
  }
}
