// y[r] = the elements c of row r, transformed by MAP and combined by JOIN, followed by FINISH. If
// MAP is EXPONENTIAL, the terms are exp(x - max(x)), and max(x) is added at the end.
//
// The rows are split by n1 and n2, their elements by m1 and m2. A work-group, or with ITEM a
// work-item, computes a pair of rows.
#include "common/reduce"
// MAP:
const ABSOLUTE = 1u;
const SQUARED = 2u;
const EXPONENTIAL = 3u;
// JOIN, besides sums:
const LARGEST = 1u;
const SMALLEST = 2u;
const MULTIPLIED = 3u;
// FINISH:
const MEAN = 1u;
const ROOT = 2u;
const LOGARITHM = 3u;

fn element(base: u32, c: u32) -> ELEM {
#ifdef FLAT
  return ELEM(x_at(base + c));
#else
#ifdef ONE_AXIS
  return ELEM(x_at(base + c * p.r0));
#else
  return ELEM(x_at(base + c % p.m1 * p.r0 + c / p.m1 % p.m2 * p.r1 + c / p.m1 / p.m2 * p.r2));
#endif
#endif
}

fn row_start(row: u32) -> u32 {
#ifdef FLAT
  return row * p.cols;
#else
  return row % p.n1 * p.k0 + row / p.n1 % p.n2 * p.k1 + row / p.n1 / p.n2 * p.k2;
#endif
}

fn term(v: ELEM, top: ELEM) -> ELEM {
  if (MAP == ABSOLUTE) { return abs(v); }
  if (MAP == SQUARED) { return v * v; }
  if (MAP == EXPONENTIAL) { return ELEM(exp_of(f32(v - top))); }
  return v;
}

// The neutral element of JOIN.
fn neutral() -> ELEM {
  if (JOIN == LARGEST) { return least(); }
  if (JOIN == SMALLEST) { return greatest(); }
  if (JOIN == MULTIPLIED) { return 1; }
  return 0;
}

fn join(a: ELEM, b: ELEM) -> ELEM {
  if (JOIN == LARGEST) { return larger(a, b); }
  if (JOIN == SMALLEST) { return smaller(a, b); }
  if (JOIN == MULTIPLIED) { return a * b; }
  return a + b;
}

fn mean(s: ELEM) -> ELEM {
  if (p.cols == 0u) { return ELEM(nan()); }
  return s / ELEM(p.cols);
}

#ifdef ITEM
const STEP = 1u;
fn max_of_all(v: ELEM, lid: u32) -> ELEM { return v; }
fn join_all(v: ELEM, lid: u32) -> ELEM { return v; }
#else
const STEP = WG;
fn max_of_all(v: f32, lid: u32) -> f32 { return wg_max(v, lid); }
fn join_all(v: f32, lid: u32) -> f32 {
  if (JOIN == LARGEST) { return wg_max(v, lid); }
  if (JOIN == SMALLEST) { return -wg_max(-v, lid); }
  return wg_sum(v, lid);
}
#endif

@compute @workgroup_size(WG)
fn reduce(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(local_invocation_index) lid: u32,
  @builtin(global_invocation_id) id: vec3<u32>,
) {
#ifdef ITEM
  let pair = id.x;
  let begin = 0u;
  if (2u * pair >= p.rows) { return; }
#else
  let pair = group.x;
  let begin = lid;
#endif
  var v: array<ELEM, 2>;
  for (var h = 0u; h < 2u; h++) {
    let base = row_start(min(2u * pair + h, p.rows - 1u));
    var top = ELEM(0);
    if (MAP == EXPONENTIAL) {
      top = least();
      for (var c = begin; c < p.cols; c += STEP) { top = larger(top, element(base, c)); }
      top = max_of_all(top, lid);
      // If the largest element is infinite or NaN, nothing is subtracted, so that it reaches the
      // sum.
      if (!is_finite(f32(top))) { top = 0; }
    }
    var s = neutral();
    for (var c = begin; c < p.cols; c += STEP) { s = join(s, term(element(base, c), top)); }
    s = join_all(s, lid);
    if (FINISH == MEAN) { s = mean(s); }
    if (FINISH == ROOT) { s = ELEM(sqrt_of(f32(s))); }
    if (FINISH == LOGARITHM) { s = ELEM(log_of(f32(s))) + top; }
    v[h] = s;
  }
#ifdef ITEM
  y_put2(pair, vec2<ELEM>(v[0], v[1]));
#else
  if (lid == 0u) { y_put2(pair, vec2<ELEM>(v[0], v[1])); }
#endif
}
