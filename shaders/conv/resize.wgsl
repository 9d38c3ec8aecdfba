// y[o, i, m, j, t] = x interpolated at the coordinates of i along the axis of in_h elements, and of
// j along the axis of in_w elements. A work-item computes two neighbouring results. TAPS is the
// number of elements along each axis that contribute to a result: 1 (nearest, chosen by ROUNDING),
// 2 (linear) or 4 (cubic).
//
// The coordinate of result i is (i * step + first) / unit, or by COORDINATES:
const ONE_IS_FIRST = 1u;
const CROP = 2u;
// ROUNDING:
const DOWN = 0u;
const UP = 1u;
const NEAREST_OR_DOWN = 2u;
const NEAREST_OR_UP = 3u;
const UP_IF_SMALLER = 4u;

// The coordinate low + part / unit.
struct Place {
  low: i32,
  part: u32,
  unit: u32,
}

fn place(i: u32, size: u32, out: u32, step: u32, first: i32, unit: u32, start: f32, end: f32) -> Place {
  if (COORDINATES == ONE_IS_FIRST && out <= 1u) { return Place(0, 0u, 1u); }
  if (COORDINATES == CROP) {
    let last = f32(size - 1u);
    var v = 0.5 * (start + end) * last;
    if (out > 1u) { v = start * last + f32(i) * (end - start) * last / f32(out - 1u); }
    // Near an element or halfway between two, only rounding decides.
    let near = round(2.0 * v) * 0.5;
    if (abs(v - near) <= min(4e-7 * f32(size) * (1.0 + abs(start) + abs(end)), 0.01)) { v = near; }
    v = clamp(v, -1e9, 1e9);
    return Place(i32(floor(v)), u32((v - floor(v)) * 16777216.0), 16777216u);
  }
  // Floats estimate the quotient. The remainder is small, so it is exact modulo 2^32.
  var low = i32(floor((f32(i) * f32(step) + f32(first)) / f32(unit)));
  var rest = bitcast<i32>(i * step + bitcast<u32>(first) - bitcast<u32>(low) * unit);
  let more = i32(floor(f32(rest) / f32(unit)));
  low += more;
  rest -= more * i32(unit);
  if (rest < 0) {
    low--;
    rest += i32(unit);
  }
  if (rest >= i32(unit)) {
    low++;
    rest -= i32(unit);
  }
  return Place(low, u32(rest), unit);
}

fn cubic_weight(a: f32, d: f32) -> f32 {
  if (d <= 1.0) { return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0; }
  return select(0.0, ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a, d < 2.0);
}

// The elements that are interpolated at a coordinate, and their weights. `inside` is false if CROP
// puts it outside the operand.
struct Taps {
  element: array<u32, TAPS>,
  weight: array<f32, TAPS>,
  inside: bool,
}

fn taps(position: Place, size: u32, step: u32) -> Taps {
  var at = position;
  var out: Taps;
  let last = i32(size) - 1;
  out.inside = COORDINATES != CROP || at.low >= 0 && (at.low < last || at.low == last && at.part == 0u);
  if (TAPS == 1u) {
    var up = false;
    if (ROUNDING == NEAREST_OR_DOWN) { up = 2u * at.part > at.unit; }
    if (ROUNDING == NEAREST_OR_UP) { up = 2u * at.part >= at.unit; }
    if (ROUNDING == UP) { up = at.part > 0u; }
    if (ROUNDING == UP_IF_SMALLER) { up = step > at.unit && at.part > 0u; }
    out.element[0] = u32(clamp(select(at.low, at.low + 1, up), 0, last));
    out.weight[0] = 1.0;
    return out;
  }
  if (TAPS == 2u && (at.low < 0 || at.low >= last)) {
    at.low = clamp(at.low, 0, last);
    at.part = 0u;
  }
  let part = f32(at.part) / f32(at.unit);
  var sum = 0.0;
  for (var t = 0u; t < TAPS; t++) {
    let beside = i32(t) - (i32(TAPS / 2u) - 1);
    let near = at.low + beside;
    let d = abs(part - f32(beside));
    var w = max(1.0 - d, 0.0);
    if (TAPS == 4u) { w = cubic_weight(p.cubic, d); }
#ifdef INSIDE_ONLY
    if (near < 0 || near > last) { w = 0.0; }
#endif
    sum += w;
    out.element[t] = u32(clamp(near, 0, last));
    out.weight[t] = w;
  }
  for (var t = 0u; t < TAPS; t++) { out.weight[t] /= sum; }
  return out;
}

// The sum of the columns of a row.
fn part(cols: Taps, row: u32, t: u32) -> f32 {
  var sum = 0.0;
  for (var b = 0u; b < TAPS; b++) { sum += cols.weight[b] * f32(x_at((row * p.in_w + cols.element[b]) * p.inner + t)); }
  return sum;
}

fn element(at: u32) -> ELEM {
  let t = at % p.inner;
  var rest = at / p.inner;
  let j = rest % p.out_w;
  rest /= p.out_w;
  let m = rest % p.mid;
  rest /= p.mid;
  let i = rest % p.out_h;
  let o = rest / p.out_h;
  var inside = true;
#ifdef HIGH
  let rows = taps(place(i, p.in_h, p.out_h, p.step_h, p.first_h, p.unit_h, p.start_h, p.end_h), p.in_h, p.step_h);
  inside = rows.inside;
#endif
  let cols = taps(place(j, p.in_w, p.out_w, p.step_w, p.first_w, p.unit_w, p.start_w, p.end_w), p.in_w, p.step_w);
  inside = inside && cols.inside;
  let plane = o * p.in_h;
  var s = ELEM(0);
  if (TAPS == 1u) {
#ifdef HIGH
    let row = plane + rows.element[0];
#else
    let row = plane + i;
#endif
    s = x_at(((row * p.mid + m) * p.in_w + cols.element[0]) * p.inner + t);
  } else {
    var sum = 0.0;
#ifdef HIGH
    for (var a = 0u; a < TAPS; a++) { sum += rows.weight[a] * part(cols, (plane + rows.element[a]) * p.mid + m, t); }
#else
    sum = part(cols, (plane + i) * p.mid + m, t);
#endif
    s = ELEM(sum);
  }
  if (COORDINATES == CROP && !inside) { s = ELEM(p.outside); }
  return s;
}

@compute @workgroup_size(WG)
fn resize(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
