enable f16;
enable wgpu_cooperative_matrix;
// Rounds of products of matrices of halves on matrix units. Each warp has four chains, and each
// work-item writes a sum of its own elements.
var<workgroup> halves: array<vec4<f16>, 64>;
var<workgroup> sums: array<f32, 256>;

@compute @workgroup_size(WG)
fn probe_matrix(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  halves[lid] = vec4<f16>(vec4<f32>(p.factor, p.addend, p.factor, p.addend));
  halves[lid + 32u] = halves[lid];
  workgroupBarrier();
  var s0: coop_mat16x16<f32, C>;
  var s1: coop_mat16x16<f32, C>;
  var s2: coop_mat16x16<f32, C>;
  var s3: coop_mat16x16<f32, C>;
  let left = coopLoadT<coop_mat16x16<f16, A>>(&halves[0], 4u);
  let right = coopLoad<coop_mat16x16<f16, B>>(&halves[0], 4u);
  for (var i = 0u; i < p.rounds; i++) {
    s0 = coopMultiplyAdd(left, right, s0);
    s1 = coopMultiplyAdd(left, right, s1);
    s2 = coopMultiplyAdd(left, right, s2);
    s3 = coopMultiplyAdd(left, right, s3);
  }
  coopStoreT(s0, &sums[0], 16u);
  workgroupBarrier();
  var sum = sums[lid];
  workgroupBarrier();
  coopStoreT(s1, &sums[0], 16u);
  workgroupBarrier();
  sum += sums[lid];
  workgroupBarrier();
  coopStoreT(s2, &sums[0], 16u);
  workgroupBarrier();
  sum += sums[lid];
  workgroupBarrier();
  coopStoreT(s3, &sums[0], 16u);
  workgroupBarrier();
  y_put(id.x, sum + sums[lid]);
}
