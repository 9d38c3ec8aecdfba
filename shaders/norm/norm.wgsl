// y[r, c] = (x[r, c] - mean) / sqrt(variance + epsilon) * scale + bias, where mean and variance are
// operands or those of row r. Without CENTER, the mean is 0. With BY_COLUMN, each column has a
// scale and a bias; otherwise, `run` neighbours share them, and row r uses set r % sets, of `per`
// elements. A work-group computes a row, or a pair of rows if an odd row length could make two rows
// share a 32-bit word (ROWS = 2).
#include "common/reduce"

fn place(row: u32, c: u32) -> u32 {
#ifdef BY_COLUMN
  return c;
#else
  return row % p.sets * p.per + c / p.run;
#endif
}

@compute @workgroup_size(WG)
fn norm(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let first = group.x * ROWS;
  var shift: array<f32, ROWS>;
  var inverse: array<f32, ROWS>;
  for (var j = 0u; j < ROWS; j++) {
#ifdef HAS_MEAN
    let turn = min(first + j, p.rows - 1u) % p.sets;
    shift[j] = mean_at(turn);
    let spread = variance_at(turn);
#else
    let n = select(0u, p.cols, first + j < p.rows);
    let start = (first + j) * p.cols;
    var s = 0.0;
#ifdef CENTER
    for (var i = lid; i < n; i += WG) { s += x_at(start + i); }
    shift[j] = wg_sum(s, lid) / f32(p.cols);
    s = 0.0;
#endif
    for (var i = lid; i < n; i += WG) {
      let v = x_at(start + i) - shift[j];
      s += v * v;
    }
    let spread = wg_sum(s, lid) / f32(p.cols);
#endif
    inverse[j] = inverseSqrt(spread + p.epsilon);
  }
  let begin = first * p.cols;
  let end = min((first + ROWS) * p.cols, p.rows * p.cols);
  for (var i = begin / 2u + lid; 2u * i < end; i += WG) {
    var out = x_at2(i);
    for (var h = 0u; h < 2u; h++) {
      let at = 2u * i + h - begin;
      let j = select(0u, ROWS - 1u, at >= p.cols);
      // If the end is odd, there is one more element, for which there may be no column.
      let c = min(select(at, at - p.cols, at >= p.cols), p.cols - 1u);
      out[h] = (out[h] - shift[j]) * inverse[j];
#ifdef HAS_SCALE
      out[h] *= scale_at(place(first + j, c));
#endif
#ifdef HAS_BIAS
      out[h] += bias_at(place(first + j, c));
#endif
    }
    y_put2(i, out);
  }
}
