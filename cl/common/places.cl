// The element to which an index tensor points.
//
// With TUPLE (a number), tuple i / row of indices selects a slice of `row` elements, which contains
// element i. The axes that it indexes have the sizes n0.. and the steps s0.. .
//
// Otherwise, index i / row selects an element along an axis of n0 elements, s0 apart. Its position
// in the other axes is that of i. They have the sizes m1 (innermost) to m4 and the rest, and the
// steps t0.. .
//
// Indices below 0 count from the end. The result is false if one is outside.
inline bool along(int index, int n, uint s, uint *place) {
  index += index < 0 ? n : 0;
  *place += (uint)index * s;
  return index >= 0 && index < n;
}

inline bool place_of(uint i, Params p, int i0, int i1, int i2, int i3, uint *place) {
  bool inside = true;
#ifdef TUPLE
  *place = i % p.row;
  if (TUPLE > 0) inside = along(i0, p.n0, p.s0, place);
  if (TUPLE > 1) inside = along(i1, p.n1, p.s1, place) && inside;
  if (TUPLE > 2) inside = along(i2, p.n2, p.s2, place) && inside;
  if (TUPLE > 3) inside = along(i3, p.n3, p.s3, place) && inside;
#else
  *place = i % p.m1 * p.t0 + i / p.m1 % p.m2 * p.t1 + i / p.m1 / p.m2 % p.m3 * p.t2 +
           i / p.m1 / p.m2 / p.m3 % p.m4 * p.t3 + i / p.m1 / p.m2 / p.m3 / p.m4 * p.t4;
  inside = along(i0, p.n0, p.s0, place);
#endif
  return inside;
}

#ifdef TUPLE
#define INDEX(i, j) (TUPLE > (j) ? index_at((i) / p.row * TUPLE + min((uint)(j), (uint)(TUPLE - 1))) : 0)
#define PLACE(i, place) place_of(i, p, INDEX(i, 0), INDEX(i, 1), INDEX(i, 2), INDEX(i, 3), place)
#else
#define PLACE(i, place) place_of(i, p, index_at((i) / p.row), 0, 0, 0, place)
#endif
