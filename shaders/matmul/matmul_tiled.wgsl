// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results; with TRANS_B,
// b is [z, j, k].
#include "common/batches"
fn y_start(z: u32, i: u32) -> u32 { return (z * p.m + i) * p.y_stride + p.column; }
#include "common/tile"

@compute @workgroup_size(WG)
fn matmul_tiled(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lid: u32) {
  tiles(group, grid, lid);
}
