// y[o, i, m, j, t] = x at the places of i along an axis of in_h and of j along one of in_w elements, interpolated. A work-item computes two
// neighbouring results.
#ifdef NEAREST
const TAPS = 1u;
#else
#ifdef CUBIC
const TAPS = 4u;
#else
const TAPS = 2u;
#endif
#endif

fn coordinate(i: u32, size: u32, out: u32, scale: f32, start: f32, end: f32) -> f32 {
  var at = f32(i);
#ifdef ONE_AT_ZERO
  if (out <= 1u) { return 0.0; }
#endif
#ifdef CORNERS
  return at * f32(size - 1u) / f32(out - 1u);
#else
#ifdef REGION
  if (out <= 1u) { return 0.5 * (start + end) * f32(size - 1u); }
  return start * f32(size - 1u) + at * (end - start) * f32(size - 1u) / f32(out - 1u);
#else
#ifdef SYMMETRIC
  let offset = f32(size) / 2.0 * (1.0 - f32(out) / (scale * f32(size)));
  return offset + (at + 0.5) / scale - 0.5;
#else
#ifdef CENTRES
  at = (at + 0.5) / scale;
#else
  at = at / scale;
#endif
#ifdef MOVED_BACK
  at -= 0.5;
#endif
  return at;
#endif
#endif
#endif
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
#ifdef REGION
  out.inside = at >= 0.0 && at <= last;
#else
  out.inside = true;
#endif
#ifdef NEAREST
  let low = floor(at);
  let half_way = at - low;
#ifdef ROUND_DOWN
  at = select(round(at), low, half_way == 0.5);
#endif
#ifdef ROUND_UP
  at = select(round(at), low + 1.0, half_way == 0.5);
#endif
#ifdef UPPER
  at = ceil(at);
#endif
#ifdef SIMPLE
  at = select(low, ceil(at), scale < 1.0);
#endif
  out.element[0] = min(u32(max(floor(at), 0.0)), size - 1u);
  out.weight[0] = 1.0;
#else
#ifndef CUBIC
  at = clamp(at, 0.0, last);
#endif
  let low = floor(at);
  var sum = 0.0;
  for (var t = 0u; t < TAPS; t++) {
    let near = low + f32(t) - f32(TAPS / 2u - 1u);
    let d = abs(at - near);
#ifdef CUBIC
    var w = cubic_weight(p.cubic, d);
#else
    var w = max(1.0 - d, 0.0);
#endif
#ifdef INSIDE_ONLY
    if (near < 0.0 || near > last) { w = 0.0; }
#endif
    sum += w;
    out.element[t] = u32(clamp(near, 0.0, last));
    out.weight[t] = w;
  }
  for (var t = 0u; t < TAPS; t++) { out.weight[t] /= sum; }
#endif
  return out;
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
#ifdef NEAREST
#ifdef HIGH
  let row = rows.element[0];
#else
  let row = i;
#endif
  var s = x_at((((o * p.in_h + row) * p.mid + m) * p.in_w + cols.element[0]) * p.inner + t);
#else
  var s = 0.0;
#ifdef HIGH
  for (var a = 0u; a < TAPS; a++) {
    let row = (o * p.in_h + rows.element[a]) * p.mid + m;
#else
  {
    let row = (o * p.in_h + i) * p.mid + m;
#endif
    var part = 0.0;
    for (var b = 0u; b < TAPS; b++) { part += cols.weight[b] * x_at((row * p.in_w + cols.element[b]) * p.inner + t); }
#ifdef HIGH
    s += rows.weight[a] * part;
#else
    s += part;
#endif
  }
#endif
#ifdef REGION
  if (!inside) { s = ELEM(p.outside); }
#endif
  return s;
}

@compute @workgroup_size(WG)
fn resize(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
