// y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + epsilon) * scale. One work-group a row, or a pair of rows where
// an odd row length could make two rows share a 32-bit word (ROWS = 2).
#include "common/reduce"

@compute @workgroup_size(WG)
fn rms_norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = group.x * ROWS;
  var inverse: array<f32, ROWS>;
  for (var j = 0u; j < ROWS; j++) {
    var s = 0.0;
    if (first + j < p.rows) {
      for (var i = lid; i < p.cols; i += WG) {
        let v = x_at((first + j) * p.cols + i);
        s += v * v;
      }
    }
    inverse[j] = inverseSqrt(wg_sum(s, lid) / f32(p.cols) + p.epsilon);
  }
  let begin = first * p.cols;
  let end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (var i = begin / 2u + lid; 2u * i < end; i += WG) {
    var v = x_at2(i);
    let a = 2u * i - begin;
    let b = a + 1u;
    v.x *= inverse[select(0u, ROWS - 1u, a >= p.cols)] * scale_at(a % p.cols);
    v.y *= inverse[select(0u, ROWS - 1u, b >= p.cols)] * scale_at(b % p.cols);
    y_put2(i, v);
  }
}
