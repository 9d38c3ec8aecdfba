// The `kept` largest, or smallest, elements of lines of n elements that lie `inner` apart, in order, and their positions; of equal ones
// the first comes first. A work-item finds the place of one element, by comparing it with all of its line, and stores it there.
@compute @workgroup_size(WG)
fn top_k(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let own = i / p.inner % p.n;
  let outer = i / p.inner / p.n;
  let inside = i % p.inner;
  let base = outer * p.n * p.inner + inside;
  let v = x_at(i);
  var place = 0u;
  for (var j = 0u; j < p.n; j++) {
    let o = x_at(base + j * p.inner);
#ifdef LARGEST
    let before = o > v;
#else
    let before = o < v;
#endif
    if (before || (o == v && j < own)) { place++; }
  }
  if (place >= p.kept) { return; }
  let to = (outer * p.kept + place) * p.inner + inside;
  y_put(to, v);
  at_put(to, i32(own));
}
