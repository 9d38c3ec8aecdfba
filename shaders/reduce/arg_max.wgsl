// y = the position of the largest element along an axis of `cols` elements, which are `inner`
// apart. Of equal elements, the first counts, or with LAST the last. With SMALLEST, y is the
// position of the smallest element. A work-item computes two neighbouring results.
#include "common/order"
fn is_better(a: i32, b: i32) -> bool {
#ifdef SMALLEST
  return a < b;
#else
  return a > b;
#endif
}

#ifdef FLOATS
// NaN counts as the largest, or the smallest.
fn key_of(v: f32) -> i32 {
#ifdef SMALLEST
  return order_of(v, -2147483647 - 1);
#else
  return order_of(v, 2147483647);
#endif
}
#else
fn key_of(v: i32) -> i32 { return v; }
#endif

fn element(i: u32) -> i32 {
  let base = i / p.inner * p.cols * p.inner + i % p.inner;
  var place = 0u;
  var best = key_of(x_at(base));
  for (var c = 1u; c < p.cols; c++) {
    let e = key_of(x_at(base + c * p.inner));
#ifdef LAST
    let better = !is_better(best, e);
#else
    let better = is_better(e, best);
#endif
    if (better) {
      best = e;
      place = c;
    }
  }
  return i32(place);
}

@compute @workgroup_size(WG)
fn arg_max(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<i32>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
