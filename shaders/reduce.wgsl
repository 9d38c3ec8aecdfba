// y[r] = a sum (or MAXIMUM, MINIMUM, PRODUCT) over the elements c of row r of their values (or ABS, SQUARE), after which MEAN divides by
// their number, ROOT takes the root and LOG the logarithm; with EXP the terms are exp(x - max(x)), and max(x) is added at the end. The
// rows are split by n1 and n2, their elements by m1 and m2. A work-group, or with ITEM a work-item, computes a pair of rows.
#include "common/reduce"

fn at(base: u32, c: u32) -> ELEM {
#ifdef FLAT
  return x_at(base + c);
#else
#ifdef ONE
  return x_at(base + c * p.r0);
#else
  return x_at(base + c % p.m1 * p.r0 + c / p.m1 % p.m2 * p.r1 + c / p.m1 / p.m2 * p.r2);
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
#ifdef ABS
  return abs(v);
#else
#ifdef SQUARE
  return v * v;
#else
#ifdef EXP
  return exp(v - top);
#else
  return v;
#endif
#endif
#endif
}

#ifdef MAXIMUM
const START: ELEM = LEAST;
fn join(a: ELEM, b: ELEM) -> ELEM { return max(a, b); }
#else
#ifdef MINIMUM
const START: ELEM = -(LEAST + 1);
fn join(a: ELEM, b: ELEM) -> ELEM { return min(a, b); }
#else
#ifdef PRODUCT
const START: ELEM = 1;
fn join(a: ELEM, b: ELEM) -> ELEM { return a * b; }
#else
const START: ELEM = 0;
fn join(a: ELEM, b: ELEM) -> ELEM { return a + b; }
#endif
#endif
#endif

#ifdef ITEM
const STEP = 1u;
fn most(v: ELEM, lid: u32) -> ELEM { return v; }
fn total(v: ELEM, lid: u32) -> ELEM { return v; }
#else
const STEP = WG;
fn most(v: f32, lid: u32) -> f32 { return wg_max(v, lid); }
#ifdef MAXIMUM
fn total(v: f32, lid: u32) -> f32 { return wg_max(v, lid); }
#else
#ifdef MINIMUM
fn total(v: f32, lid: u32) -> f32 { return -wg_max(-v, lid); }
#else
fn total(v: f32, lid: u32) -> f32 { return wg_sum(v, lid); }
#endif
#endif
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
#ifdef EXP
    top = LEAST;
    for (var c = begin; c < p.cols; c += STEP) { top = max(top, at(base, c)); }
    top = most(top, lid);
#endif
    var s = START;
    for (var c = begin; c < p.cols; c += STEP) { s = join(s, term(at(base, c), top)); }
    s = total(s, lid);
#ifdef MEAN
    s /= ELEM(p.cols);
#endif
#ifdef ROOT
    s = sqrt(s);
#endif
#ifdef LOG
    s = log(s) + top;
#endif
    v[h] = s;
  }
#ifdef ITEM
  y_put2(pair, vec2<ELEM>(v[0], v[1]));
#else
  if (lid == 0u) { y_put2(pair, vec2<ELEM>(v[0], v[1])); }
#endif
}
