// Along an inner axis of `cols` elements, `inner` apart: y = exp(x - max) / sum, its logarithm
// (LOG), or 1 for the first of the largest elements and 0 for others (HARDMAX). A work-item
// computes RUN neighbouring rows.
fn row(base: u32) {
  var top = least();
  var place = 0u;
  for (var c = 0u; c < p.cols; c++) {
    let v = x_at(base + c * p.inner);
    // NaN counts as the largest.
    if (!is_nan(top) && (is_nan(v) || v > top)) { place = c; }
    top = larger(top, v);
  }
  var sum = 0.0;
#ifndef HARDMAX
  // If a row contains infinity or NaN, or only -infinity, all its results are NaN.
  let broken = !is_finite(top);
  if (broken) { top = 0.0; }
  for (var c = 0u; c < p.cols; c++) { sum += exp(min(x_at(base + c * p.inner) - top, 0.0)); }
  if (broken) { sum = nan(); }
#endif
  for (var c = 0u; c < p.cols; c++) {
    let at = base + c * p.inner;
#ifdef HARDMAX
    y_put(at, select(0.0, 1.0, c == place));
#else
#ifdef LOG
    y_put(at, x_at(at) - top - log(sum));
#else
    y_put(at, exp(min(x_at(at) - top, 0.0)) / sum);
#endif
#endif
  }
}

@compute @workgroup_size(WG)
fn softmax_axis(@builtin(global_invocation_id) id: vec3<u32>) {
  let runs = (p.inner + RUN - 1u) / RUN;
  if (id.x >= p.outer * runs) { return; }
  let first = id.x % runs * RUN;
  let count = min(RUN, p.inner - first);
  for (var i = 0u; i < count; i++) { row(id.x / runs * p.cols * p.inner + first + i); }
}
