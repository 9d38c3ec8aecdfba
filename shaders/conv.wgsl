// y[n, m, oy, ox] = bias[m] + sum over ci, ky, kx of w[m, ci, ky, kx] * x[n, group + ci, oy * SH + ky * DH - pad_h,
// ox * SW + kx * DW - pad_w], as far as it lies inside x. A work-item computes TILE channels of a group by RUN results of a row.
const TAPS = KH * KW;

// The element in column `ix` of the row that begins at `start`.
fn column(start: u32, ix: i32) -> f32 {
  if (u32(ix) >= p.in_w) { return 0.0; }
  return x_at(start + u32(ix));
}

@compute @workgroup_size(WG)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
  let runs = (p.out_w + RUN - 1u) / RUN;
  if (id.x >= p.out_h * runs) { return; }
  let oy = id.x / runs;
  let ox = id.x % runs * RUN;
  let tile = p.first + wg.y;
  let group = tile / p.tiles;
  let row = tile % p.tiles * TILE;
  let y0 = i32(oy * SH) - p.pad_h;
  let x0 = i32(ox * SW) - p.pad_w;
  var sum: array<vec4<f32>, TILE>;
  for (var t = 0u; t < TILE; t++) {
#ifdef HAS_BIAS
    sum[t] = vec4<f32>(bias_at(group * p.rows + min(row + t, p.rows - 1u)));
#else
    sum[t] = vec4<f32>();
#endif
  }
  for (var ci = 0u; ci < p.channels; ci++) {
    for (var ky = 0u; ky < KH; ky++) {
      let iy = y0 + i32(ky * DH);
      if (u32(iy) >= p.in_h) { continue; }
      let start = wg.z * p.image + ((group * p.channels + ci) * p.in_h + u32(iy)) * p.in_w;
      for (var kx = 0u; kx < KW; kx++) {
        let ix = x0 + i32(kx * DW);
        let v = vec4<f32>(column(start, ix), column(start, ix + i32(SW)), column(start, ix + i32(2u * SW)),
          column(start, ix + i32(3u * SW)));
#ifdef PACKED
        let at = ((wg.y * p.channels + ci) * TAPS + ky * KW + kx) * TILE;
        for (var t = 0u; t < TILE; t++) { sum[t] += w_at(at + t) * v; }
#else
        let at = ci * TAPS + ky * KW + kx;
        for (var t = 0u; t < TILE; t++) {
          sum[t] += w_at((group * p.rows + min(row + t, p.rows - 1u)) * p.channels * TAPS + at) * v;
        }
#endif
      }
    }
  }
  let count = min(RUN, p.out_w - ox);
  for (var t = 0u; t < TILE; t++) {
    if (row + t >= p.rows) { continue; }
    let m = group * p.rows + row + t;
    let to = ((wg.z * p.outputs + m) * p.out_h + oy) * p.out_w + ox;
    if (count == RUN && to % 2u == 0u) {
      y_put2(to / 2u, sum[t].xy);
      y_put2(to / 2u + 1u, sum[t].zw);
    } else {
      for (var i = 0u; i < count; i++) { y_put(to + i, sum[t][i]); }
    }
  }
}
