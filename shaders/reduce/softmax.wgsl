// y[r, :] = exp(x[r, :] - max) / sum, or with LOG its logarithm. A work-group computes a row, or a
// pair of rows if an odd row length could make two rows share a 32-bit word (ROWS = 2).
#include "common/reduce"

@compute @workgroup_size(WG)
fn softmax(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = group.x * ROWS;
  var top: array<f32, ROWS>;
  var inverse: array<f32, ROWS>;
  for (var j = 0u; j < ROWS; j++) {
    let n = select(0u, p.cols, first + j < p.rows);
    var m = -infinity();
    for (var i = lid; i < n; i += WG) { m = larger(m, x_at((first + j) * p.cols + i)); }
    m = wg_max(m, lid);
    // If a row contains infinity or NaN, or only -infinity, all its results are NaN.
    let broken = !is_finite(m);
    top[j] = select(m, 0.0, broken);
    var s = 0.0;
    for (var i = lid; i < n; i += WG) { s += exp(min(x_at((first + j) * p.cols + i) - top[j], 0.0)); }
    s = max(wg_sum(s, lid), 1.0e-30);
#ifdef LOG
    inverse[j] = log(s);
#else
    inverse[j] = 1.0 / s;
#endif
    if (broken) { inverse[j] = nan(); }
  }
  let begin = first * p.cols;
  let end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (var i = begin / 2u + lid; 2u * i < end; i += WG) {
    let v = x_at2(i);
    let a = select(0u, ROWS - 1u, 2u * i - begin >= p.cols);
    let b = select(0u, ROWS - 1u, 2u * i + 1u - begin >= p.cols);
#ifdef LOG
    y_put2(i, vec2<f32>(v.x - top[a] - inverse[a], v.y - top[b] - inverse[b]));
#else
    y_put2(i, vec2<f32>(exp(min(v.x - top[a], 0.0)) * inverse[a], exp(min(v.y - top[b], 0.0)) * inverse[b]));
#endif
  }
}
