// y = x with b0 (innermost) to b4 elements inserted before its axes of m0 to m4 elements. The axes
// of the result have n0 to n3 elements and the rest. The padding is the nearest element (EDGE), the
// reflected elements (REFLECT), the repeated elements (WRAP), or else a value. A work-item writes
// two neighbouring results.
struct Walk {
  rest: u32,
  at: u32,
  step: u32,
  inside: bool,
}

fn axis(w: Walk, n: u32, m: i32, b: i32) -> Walk {
  let i = i32(w.rest % n) - b;
  var place = i;
  var inside = true;
  if (i < 0 || i >= m) {
#ifdef EDGE
    place = clamp(i, 0, m - 1);
#else
#ifdef WRAP
    place = (i % m + m) % m;
#else
#ifdef REFLECT
    let period = max(2 * (m - 1), 1);
    let turn = (i % period + period) % period;
    place = min(turn, period - turn) % m;
#else
    place = 0;
    inside = false;
#endif
#endif
#endif
  }
  return Walk(w.rest / n, w.at + u32(place) * w.step, w.step * u32(m), w.inside && inside);
}

fn element(i: u32) -> ELEM {
  var w = axis(Walk(i, 0u, 1u, true), p.n0, p.m0, p.b0);
  if (RANK > 1u) { w = axis(w, p.n1, p.m1, p.b1); }
  if (RANK > 2u) { w = axis(w, p.n2, p.m2, p.b2); }
  if (RANK > 3u) { w = axis(w, p.n3, p.m3, p.b3); }
  if (RANK > 4u) { w = axis(w, p.count, p.m4, p.b4); }
  if (w.inside) { return x_at(w.at); }
#ifdef HAS_VALUE
  return value_at(0u);
#else
  return ELEM(p.fill);
#endif
}

@compute @workgroup_size(WG)
fn pad(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
