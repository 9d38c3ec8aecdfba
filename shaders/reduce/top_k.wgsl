// The `kept` largest, or smallest, elements of lines of n elements that are `inner` apart, in
// order, with their positions. Of equal elements, the first comes first. A work-item determines the
// rank of one element, by comparing it with all of its line, and stores it at that position.
#include "common/order"
#ifdef FLOATS
// NaN counts as larger than any number.
fn key_of(v: f32) -> i32 { return order_of(v, 2147483647); }
#else
fn key_of(v: i32) -> i32 { return v; }
#endif

@compute @workgroup_size(WG)
fn top_k(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let own = i / p.inner % p.n;
  let outer = i / p.inner / p.n;
  let inside = i % p.inner;
  let base = outer * p.n * p.inner + inside;
  let v = x_at(i);
  let key = key_of(v);
  var place = 0u;
  for (var j = 0u; j < p.n; j++) {
    let o = key_of(x_at(base + j * p.inner));
#ifdef LARGEST
    let before = o > key;
#else
    let before = o < key;
#endif
    if (before || (o == key && j < own)) { place++; }
  }
  if (place >= p.kept) { return; }
  let to = (outer * p.kept + place) * p.inner + inside;
  y_put(to, v);
  at_put(to, i32(own));
}
