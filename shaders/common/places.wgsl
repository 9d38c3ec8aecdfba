// The element to which an index tensor points.
//
// With TUPLE (a number), tuple i / row of indices selects a slice of `row` elements, which contains
// element i. The axes that it indexes have the sizes n0.. and the steps s0.. .
//
// Otherwise, index i / row selects an element along an axis of n0 elements, s0 apart. Its position
// in the other axes is that of i. They have the sizes m1 (innermost) to m4 and the rest, and the
// steps t0.. .
//
// Indices below 0 count from the end. `inside` is false if one is outside.
struct Place {
  at: u32,
  inside: bool,
}

fn along(place: Place, index: i32, n: i32, s: u32) -> Place {
  let at = index + select(0, n, index < 0);
  return Place(place.at + u32(at) * s, place.inside && at >= 0 && at < n);
}

fn place_of(i: u32) -> Place {
#ifdef TUPLE
  let first = i / p.row * TUPLE;
  var place = Place(i % p.row, true);
  if (TUPLE > 0u) { place = along(place, index_at(first), p.n0, p.s0); }
  if (TUPLE > 1u) { place = along(place, index_at(first + 1u), p.n1, p.s1); }
  if (TUPLE > 2u) { place = along(place, index_at(first + 2u), p.n2, p.s2); }
  if (TUPLE > 3u) { place = along(place, index_at(first + 3u), p.n3, p.s3); }
  return place;
#else
  let other = i % p.m1 * p.t0 + i / p.m1 % p.m2 * p.t1 + i / p.m1 / p.m2 % p.m3 * p.t2 +
    i / p.m1 / p.m2 / p.m3 % p.m4 * p.t3 + i / p.m1 / p.m2 / p.m3 / p.m4 * p.t4;
  return along(Place(other, true), index_at(i / p.row), p.n0, p.s0);
#endif
}
