// y[r, c] = x[r, c] / sqrt(mean of squares + epsilon) * scale[c]. A work-group computes a row,
// whose elements stay in registers: VECTORS vectors of four per work-item. Rows consist of whole
// vectors.
#include "common/reduce"

@compute @workgroup_size(WG)
fn norm_row(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let vectors = p.cols / 4u;
  let first = group.x * vectors;
  var v: array<vec4<f32>, VECTORS>;
  var squares = vec4<f32>();
  for (var e = 0u; e < VECTORS; e++) {
    let c = lid + e * WG;
    if (c < vectors) { v[e] = x_at4(first + c); }
    squares += v[e] * v[e];
  }
  let inverse = inverseSqrt(wg_sum(dot(squares, vec4<f32>(1.0)), lid) / f32(p.cols) + p.epsilon);
  for (var e = 0u; e < VECTORS; e++) {
    let c = lid + e * WG;
    if (c < vectors) { y_put4(first + c, v[e] * inverse * scale_at4(c)); }
  }
}
