// y[n, m, oy, ox] = bias[m] + sum over ci, ky, kx of w[m, ci, ky, kx] * x[n, group + ci, oy * SH + ky * DH - pad_h,
// ox * SW + kx * DW - pad_w], as far as it lies inside x. With TRANSPOSED x is taken at (oy + pad_h - ky * DH) / SH and
// (ox + pad_w - kx * DW) / SW, where these are whole, and w is [ci, m, ky, kx]. A work-item computes TILE channels of a group by RUN
// (4) neighbouring results of a row, TRANSPOSED those that are SW apart.
// With BROADCAST it computes 16 channels (TILE), and loads weights of four places of the sum for all lanes of its sub-group.
const TAPS = KH * KW;
#ifdef TRANSPOSED
const IN_STEP = 1u;
const OUT_STEP = SW;
#else
const IN_STEP = SW;
const OUT_STEP = 1u;
#endif

// The element in column `ix` of the row that begins at `start`.
fn column(start: u32, ix: i32) -> f32 {
  if (u32(ix) >= p.in_w) { return 0.0; }
  return x_at(start + u32(ix));
}

#ifdef BROADCAST
// Four neighbouring inputs of place t of the sum, zeros where it has none.
fn inputs(t: u32, first: u32, oy: u32, ox: u32) -> vec4<f32> {
  let iy = i32(oy * SH) - p.pad_h + i32(t / KW % KH * DH);
  let ix = i32(ox * SW) - p.pad_w + i32(t % KW * DW);
  if (t >= p.channels * TAPS || u32(iy) >= p.in_h) { return vec4<f32>(); }
  let start = ((first + t / TAPS) * p.in_h + u32(iy)) * p.in_w;
  let step = i32(SW);
  return vec4<f32>(column(start, ix), column(start, ix + step), column(start, ix + 2 * step), column(start, ix + 3 * step));
}

// Four results, x times the weight, of each of four channels.
fn outer(x: vec4<f32>, w: vec4<f32>) -> mat4x4<f32> { return mat4x4<f32>(x * w.x, x * w.y, x * w.z, x * w.w); }

fn bias_of(row: u32, group: u32) -> mat4x4<f32> {
#ifdef HAS_BIAS
  let at = group * p.rows;
  let last = p.rows - 1u;
  return outer(vec4<f32>(1.0), vec4<f32>(bias_at(at + min(row, last)), bias_at(at + min(row + 1u, last)), bias_at(at + min(row + 2u, last)),
    bias_at(at + min(row + 3u, last))));
#else
  return mat4x4<f32>();
#endif
}

// Results of a channel of the group, from the place `at` of its plane on.
fn put(z: u32, group: u32, row: u32, at: u32, count: u32, v: vec4<f32>) {
  if (row >= p.rows) { return; }
  let to = (z * p.outputs + group * p.rows + row) * p.out_h * p.out_w + at;
  if (count > 0u) { y_put(to, v.x); }
  if (count > 1u) { y_put(to + 1u, v.y); }
  if (count > 2u) { y_put(to + 2u, v.z); }
  if (count > 3u) { y_put(to + 3u, v.w); }
}

fn put4(z: u32, group: u32, row: u32, at: u32, count: u32, v: mat4x4<f32>) {
  put(z, group, row, at, count, v[0]);
  put(z, group, row + 1u, at, count, v[1]);
  put(z, group, row + 2u, at, count, v[2]);
  put(z, group, row + 3u, at, count, v[3]);
}

@compute @workgroup_size(WG)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
  let runs = (p.out_w + RUN - 1u) / RUN;
  let part = wg.y;
  // All lanes go on, as others need their weights.
  let place = min(id.x, p.out_h * runs - 1u);
  let oy = place / runs;
  let ox = place % runs * RUN;
  let tile = p.first + part;
  let group = tile / p.tiles;
  let row = tile % p.tiles * TILE;
  let first = wg.z * (p.image / (p.in_h * p.in_w)) + group * p.channels;
  let depth = p.channels * TAPS;
  let start = part * depth * (TILE / 4u);
  var s0 = bias_of(row, group);
  var s1 = bias_of(row + 4u, group);
  var s2 = bias_of(row + 8u, group);
  var s3 = bias_of(row + 12u, group);
  for (var t = 0u; t < depth; t += 4u) {
    // What lies behind the last place is multiplied by zeros.
    let at = t * (TILE / 4u) + lane % 8u;
    let last = depth * (TILE / 4u) - 1u;
    var w = w_at4(start + min(at, last));
    let x0 = inputs(t, first, oy, ox);
    s0 += outer(x0, subgroupBroadcast(w, 0u));
    s1 += outer(x0, subgroupBroadcast(w, 1u));
    s2 += outer(x0, subgroupBroadcast(w, 2u));
    s3 += outer(x0, subgroupBroadcast(w, 3u));
    let x1 = inputs(t + 1u, first, oy, ox);
    s0 += outer(x1, subgroupBroadcast(w, 4u));
    s1 += outer(x1, subgroupBroadcast(w, 5u));
    s2 += outer(x1, subgroupBroadcast(w, 6u));
    s3 += outer(x1, subgroupBroadcast(w, 7u));
    w = w_at4(start + min(at + 8u, last));
    let x2 = inputs(t + 2u, first, oy, ox);
    s0 += outer(x2, subgroupBroadcast(w, 0u));
    s1 += outer(x2, subgroupBroadcast(w, 1u));
    s2 += outer(x2, subgroupBroadcast(w, 2u));
    s3 += outer(x2, subgroupBroadcast(w, 3u));
    let x3 = inputs(t + 3u, first, oy, ox);
    s0 += outer(x3, subgroupBroadcast(w, 4u));
    s1 += outer(x3, subgroupBroadcast(w, 5u));
    s2 += outer(x3, subgroupBroadcast(w, 6u));
    s3 += outer(x3, subgroupBroadcast(w, 7u));
  }
  if (id.x != place) { return; }
  let to = oy * p.out_w + ox;
  let count = min(RUN, p.out_w - ox);
  put4(wg.z, group, row, to, count, s0);
  put4(wg.z, group, row + 4u, to, count, s1);
  put4(wg.z, group, row + 8u, to, count, s2);
  put4(wg.z, group, row + 12u, to, count, s3);
}
#else
@compute @workgroup_size(WG)
fn conv(@builtin(workgroup_id) wg: vec3<u32>, @builtin(global_invocation_id) id: vec3<u32>) {
  let each = (p.out_w + OUT_STEP - 1u) / OUT_STEP;
  let runs = (each + RUN - 1u) / RUN;
  // Neighbouring work-items compute the same results of other channels, or the next results of the same ones.
#ifdef BY_TILES
  let part = id.x;
  let place = wg.y;
  if (part >= p.parts) { return; }
#else
  let part = wg.y;
  let place = id.x;
  if (place >= p.out_h * OUT_STEP * runs) { return; }
#endif
  let oy = place / runs / OUT_STEP;
  let ox = place / runs % OUT_STEP + place % runs * (RUN * OUT_STEP);
  // There may be one result less of the last columns of each step.
  if (ox >= p.out_w) { return; }
  let tile = p.first + part;
  let group = tile / p.tiles;
  let row = tile % p.tiles * TILE;
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
        let v = vec4<f32>(column(start, ix), column(start, ix + step), column(start, ix + 2 * step), column(start, ix + 3 * step));
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
#endif
