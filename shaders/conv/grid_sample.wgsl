// y[n, c, i] = x[n, c], interpolated at the two coordinates in grid[n, i]. A work-item computes two
// neighbouring results. TAPS elements along each axis contribute to a result: 1 (nearest), 2
// (linear) or 4 (cubic).

// Reflects x at the centres or borders of the outermost elements until it is inside, then clamps it
// to the elements.
fn reflected(x: f32, n: f32) -> f32 {
#ifdef CORNERS
  let low = 0.0;
  let span = n - 1.0;
#else
  let low = -0.5;
  let span = n;
#endif
  if (span <= 0.0) { return 0.0; }
  var at = x - low;
  at -= floor(at / (2.0 * span)) * 2.0 * span;
  return clamp(low + min(at, 2.0 * span - at), 0.0, n - 1.0);
}

fn cubic_weight(d: f32) -> f32 {
  let a = -0.75;
  if (d <= 1.0) { return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0; }
  return select(0.0, ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a, d < 2.0);
}

// The elements around a coordinate in -1 to 1 along an axis of `size` elements, and their weights,
// which are 0 for elements outside.
struct Taps {
  element: array<u32, TAPS>,
  weight: array<f32, TAPS>,
}

fn taps(v: f32, size: u32) -> Taps {
  var out: Taps;
  let n = f32(size);
#ifdef CORNERS
  var x = (v + 1.0) / 2.0 * (n - 1.0);
#else
  var x = ((v + 1.0) * n - 1.0) / 2.0;
#endif
  if (TAPS != 4u) {
#ifdef BORDER
    x = clamp(x, 0.0, n - 1.0);
#else
#ifdef REFLECTION
    x = reflected(x, n);
#else
    x = clamp(x, -2.0, n + 1.0);
#endif
#endif
  }
  let low = floor(x);
  for (var t = 0u; t < TAPS; t++) {
    var place = low + f32(t);
    var w = select(x - low, 1.0 - (x - low), t == 0u);
    if (TAPS == 1u) {
      place = round(x);
      w = 1.0;
    }
    if (TAPS == 4u) {
      place -= 1.0;
      w = cubic_weight(abs(x - place));
    }
#ifdef BORDER
    place = clamp(place, 0.0, n - 1.0);
#else
#ifdef REFLECTION
    place = round(reflected(place, n));
#else
    if (place < 0.0 || place > n - 1.0) { w = 0.0; }
#endif
#endif
    out.element[t] = u32(clamp(place, 0.0, n - 1.0));
    out.weight[t] = w;
  }
  return out;
}

fn element(i: u32) -> f32 {
  let plane = i / p.places;
  let at = plane / p.channels * p.places + i % p.places;
  let cols = taps(grid_at(2u * at), p.in_w);
  let rows = taps(grid_at(2u * at + 1u), p.in_h);
  var s = 0.0;
  for (var a = 0u; a < TAPS; a++) {
    for (var b = 0u; b < TAPS; b++) {
      s += rows.weight[a] * cols.weight[b] * x_at((plane * p.in_h + rows.element[a]) * p.in_w + cols.element[b]);
    }
  }
  return s;
}

@compute @workgroup_size(WG)
fn grid_sample(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<f32>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
