// y[r] = factor * sum(x[r, :]), or with MAXIMUM factor * max(factor * x[r, :]) (factor -1 makes the minimum). A work-group computes
// a pair of rows.
#include "common/reduce"

@compute @workgroup_size(WG)
fn reduce(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = 2u * group.x;
  var v: array<f32, 2>;
  for (var h = 0u; h < 2u; h++) {
    let row = min(first + h, p.rows - 1u);
#ifdef MAXIMUM
    var s = -3.0e38;
    for (var i = lid; i < p.cols; i += WG) { s = max(s, p.factor * x_at(row * p.cols + i)); }
    v[h] = p.factor * wg_max(s, lid);
#else
    var s = 0.0;
    for (var i = lid; i < p.cols; i += WG) { s += x_at(row * p.cols + i); }
    v[h] = p.factor * wg_sum(s, lid);
#endif
  }
  if (lid == 0u) { y_put2(group.x, vec2<f32>(v[0], v[1])); }
}
