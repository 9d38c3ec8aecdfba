// The convolution that conv computes, as a matrix product for each image and group. Rows are output
// channels of the group, columns are results of a plane, and the sums run over input channels and
// taps. Operand a is the weights, [channels, k]; operand b is the input.
fn channel(z: u32, i: u32) -> u32 { return p.first + z % p.groups * p.m + i; }
fn a_start(z: u32) -> u32 { return z % p.groups * p.m * p.k; }
fn b_start(z: u32) -> u32 {
  return (z / p.groups * p.all_groups + p.first_group + z % p.groups) * (p.k / (KH * KW)) * p.b_stride;
}
fn y_start(z: u32, i: u32) -> u32 { return (z / p.groups * p.outputs + channel(z, i)) * p.n; }
fn bias_start(z: u32, i: u32) -> u32 { return channel(z, i); }
#ifdef WINDOWS
// An element in each of four windows: its row and its column, which may be outside, and its
// position in b, which wraps around outside.
struct Taps { row: vec4<i32>, col: vec4<i32>, at: vec4<u32> }

// The first elements of four windows, from window j on.
fn windows_from(b0: u32, j: u32) -> Taps {
  let place = min(vec4<u32>(j, j + 1u, j + 2u, j + 3u), vec4<u32>(p.n - 1u));
  let oy = place / p.out_w;
  let row = vec4<i32>(oy * SH) - p.pad_h;
  let col = vec4<i32>((place - oy * p.out_w) * SW) - p.pad_w;
  return Taps(row, col, b0 + vec4<u32>(row) * p.in_w + vec4<u32>(col));
}

// The element at a position in b, or zero if its row or its column is outside.
fn tap(row: i32, col: i32, at: u32) -> f32 {
  if (u32(row) >= p.in_h || u32(col) >= p.in_w) { return 0.0; }
  return b_at(at);
}

// The elements that term k of the sums multiplies.
fn taps_at(windows: Taps, k: u32) -> vec4<f32> {
  if (k >= p.k) { return vec4<f32>(); }
  let y = i32(k % (KH * KW) / KW * DH);
  let x = i32(k % KW * DW);
  let row = windows.row + y;
  let col = windows.col + x;
  let at = windows.at + k / (KH * KW) * p.b_stride + u32(y) * p.in_w + u32(x);
  return vec4<f32>(tap(row.x, col.x, at.x), tap(row.y, col.y, at.y), tap(row.z, col.z, at.z), tap(row.w, col.w, at.w));
}
#endif
#include "common/tile"

@compute @workgroup_size(WG)
fn conv_tiled(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lid: u32) {
  tiles(group, grid, lid);
}
