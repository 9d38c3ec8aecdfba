// y[o, i, m, j, t] = x at the places of i along an axis of in_h and of j along one of in_w elements, interpolated. A work-item computes two
// neighbouring results.
// TAPS elements along each axis make a result: 1 (chosen by ROUNDING), 2 (linear) or 4 (cubic).
const HALF_PIXEL = 0u;
const PYTORCH_HALF_PIXEL = 1u;
const HALF_PIXEL_SYMMETRIC = 2u;
const ALIGN_CORNERS = 3u;
const ASYMMETRIC = 4u;
const HALF_PIXEL_CENTRES = 5u;
const CROP = 6u;
// ROUNDING:
const DOWN = 0u;
const UP = 1u;
const NEAREST_OR_DOWN = 2u;
const NEAREST_OR_UP = 3u;
const UP_IF_SMALLER = 4u;

// The place of result i along an axis of `size` elements and `out` results, by COORDINATES.
fn coordinate(i: u32, size: u32, out: u32, scale: f32, start: f32, end: f32) -> f32 {
  var at = f32(i);
  let last = f32(size - 1u);
  if ((COORDINATES == PYTORCH_HALF_PIXEL || COORDINATES == ALIGN_CORNERS) && out <= 1u) { return 0.0; }
  if (COORDINATES == ALIGN_CORNERS) { return at * last / f32(out - 1u); }
  if (COORDINATES == CROP) {
    if (out <= 1u) { return 0.5 * (start + end) * last; }
    return start * last + at * (end - start) * last / f32(out - 1u);
  }
  if (COORDINATES == HALF_PIXEL_SYMMETRIC) {
    let offset = f32(size) / 2.0 * (1.0 - f32(out) / (scale * f32(size)));
    return offset + (at + 0.5) / scale - 0.5;
  }
  if (COORDINATES == ASYMMETRIC) { return at / scale; }
  at = (at + 0.5) / scale;
  if (COORDINATES == HALF_PIXEL_CENTRES) { return at; }
  return at - 0.5;
}

fn cubic_weight(a: f32, d: f32) -> f32 {
  if (d <= 1.0) { return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0; }
  return select(0.0, ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a, d < 2.0);
}

// The elements that a place is made of, and their weights; not inside where it is outside of the operand.
struct Taps {
  element: array<u32, TAPS>,
  weight: array<f32, TAPS>,
  inside: bool,
}

fn taps(place: f32, size: u32, scale: f32) -> Taps {
  var at = place;
  var out: Taps;
  let last = f32(size - 1u);
  out.inside = COORDINATES != CROP || at >= 0.0 && at <= last;
  if (TAPS == 1u) {
    let low = floor(at);
    let half_way = at - low;
    if (ROUNDING == NEAREST_OR_DOWN) { at = select(round(at), low, half_way == 0.5); }
    if (ROUNDING == NEAREST_OR_UP) { at = select(round(at), low + 1.0, half_way == 0.5); }
    if (ROUNDING == UP) { at = ceil(at); }
    if (ROUNDING == UP_IF_SMALLER) { at = select(low, ceil(at), scale < 1.0); }
    out.element[0] = min(u32(max(floor(at), 0.0)), size - 1u);
    out.weight[0] = 1.0;
    return out;
  }
  if (TAPS == 2u) { at = clamp(at, 0.0, last); }
  let low = floor(at);
  var sum = 0.0;
  for (var t = 0u; t < TAPS; t++) {
    let near = low + f32(t) - (f32(TAPS / 2u) - 1.0);
    let d = abs(at - near);
    var w = max(1.0 - d, 0.0);
    if (TAPS == 4u) { w = cubic_weight(p.cubic, d); }
#ifdef INSIDE_ONLY
    if (near < 0.0 || near > last) { w = 0.0; }
#endif
    sum += w;
    out.element[t] = u32(clamp(near, 0.0, last));
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
#ifdef BY_SIZE
  let scale_h = f32(p.out_h) / f32(p.in_h);
  let scale_w = f32(p.out_w) / f32(p.in_w);
#else
  let scale_h = p.scale_h;
  let scale_w = p.scale_w;
#endif
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
  let rows = taps(coordinate(i, p.in_h, p.out_h, scale_h, p.start_h, p.end_h), p.in_h, scale_h);
  inside = rows.inside;
#endif
  let cols = taps(coordinate(j, p.in_w, p.out_w, scale_w, p.start_w, p.end_w), p.in_w, scale_w);
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
