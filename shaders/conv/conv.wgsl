// y[n, m, oy, ox] = bias[m] + sum over ci, ky, kx of w[m, ci, ky, kx] * x[n, group + ci, oy * SH +
// ky * DH - pad_h, ox * SW + kx * DW - pad_w], where this lies inside x.
//
// With TRANSPOSED, x is read at (oy + pad_h - ky * DH) / SH and (ox + pad_w - kx * DW) / SW, where
// these are integers, and w is [ci, m, ky, kx].
//
// A work-item computes TILE channels of a group by RUN (4) neighbouring results of a row; with
// TRANSPOSED, these are SW apart.
const TAPS = KH * KW;
#ifdef TRANSPOSED
const IN_STEP = 1u;
const OUT_STEP = SW;
#else
const IN_STEP = SW;
const OUT_STEP = 1u;
#endif

// The element in column `ix` of the row that begins at `start`.
fn column(start: u32, ix: i32) -> ELEM {
  if (u32(ix) >= p.in_w) { return ELEM(0); }
  return x_at(start + u32(ix));
}

@compute @workgroup_size(WG)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
  let each = (p.out_w + OUT_STEP - 1u) / OUT_STEP;
  let runs = (each + RUN - 1u) / RUN;
  let part = wg.y;
  let place = id.x;
  if (place >= p.out_h * OUT_STEP * runs) { return; }
  let oy = place / runs / OUT_STEP;
  let ox = place / runs % OUT_STEP + place % runs * (RUN * OUT_STEP);
  // The last columns of each step may have one result less.
  if (ox >= p.out_w) { return; }
  let tile = p.first + part;
  let group = tile / p.tiles;
  let row = tile % p.tiles * TILE;
  var sum: array<vec4<ELEM>, TILE>;
  for (var t = 0u; t < TILE; t++) {
#ifdef HAS_BIAS
    sum[t] = vec4<ELEM>(bias_at(group * p.rows + min(row + t, p.rows - 1u)));
#else
    sum[t] = vec4<ELEM>();
#endif
  }
  for (var ci = 0u; ci < p.channels; ci++) {
    for (var ky = 0u; ky < KH; ky++) {
#ifdef TRANSPOSED
      var iy = i32(oy) + p.pad_h - i32(ky * DH);
      if (iy % i32(SH) != 0) { continue; }
      iy /= i32(SH);
#else
      let iy = i32(oy * SH) - p.pad_h + i32(ky * DH);
#endif
      if (u32(iy) >= p.in_h) { continue; }
      let start = wg.z * p.image + ((group * p.channels + ci) * p.in_h + u32(iy)) * p.in_w;
      for (var kx = 0u; kx < KW; kx++) {
#ifdef TRANSPOSED
        var ix = i32(ox) + p.pad_w - i32(kx * DW);
        if (ix % i32(SW) != 0) { continue; }
        ix /= i32(SW);
#else
        let ix = i32(ox * SW) - p.pad_w + i32(kx * DW);
#endif
        let step = i32(IN_STEP);
        let v = vec4<ELEM>(column(start, ix), column(start, ix + step), column(start, ix + 2 * step),
            column(start, ix + 3 * step));
        let tap = ky * KW + kx;
#ifdef PACKED
        let at = ((part * p.channels + ci) * TAPS + tap) * TILE;
        for (var t = 0u; t < TILE; t++) { sum[t] += w_at(at + t) * v; }
#else
        for (var t = 0u; t < TILE; t++) {
          let m = min(row + t, p.rows - 1u);
#ifdef TRANSPOSED
          let at = (group * p.channels + ci) * p.rows + m;
#else
          let at = (group * p.rows + m) * p.channels + ci;
#endif
          sum[t] += w_at(at * TAPS + tap) * v;
        }
#endif
      }
    }
  }
  let count = min(RUN, (p.out_w - ox + OUT_STEP - 1u) / OUT_STEP);
  for (var t = 0u; t < TILE; t++) {
    if (row + t >= p.rows) { continue; }
    let m = group * p.rows + row + t;
    let to = ((wg.z * p.outputs + m) * p.out_h + oy) * p.out_w + ox;
    if (OUT_STEP == 1u && count == RUN && to % 2u == 0u) {
      y_put2(to / 2u, sum[t].xy);
      y_put2(to / 2u + 1u, sum[t].zw);
    } else {
      for (var i = 0u; i < count; i++) { y_put(to + i * OUT_STEP, sum[t][i]); }
    }
  }
}
