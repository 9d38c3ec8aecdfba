// Applies the rotary embedding to queries and new keys, and appends the keys and the new values to
// their states. A work-item computes two neighbouring elements: of queries first, then of keys,
// then of values.
//
// Angles belong to rows. With NEIGHBOURS, two neighbouring elements form a pair that is rotated by
// an angle, and the elements after the last angle are copied. New rows are written from live[start]
// on, which is even. With HAS_PLACES, each is written to its place, or not at all if that is
// negative.
#ifdef NEIGHBOURS
inline float2 turn(float2 v, float c, float s) { return (float2)(v.x * c - v.y * s, v.y * c + v.x * s); }

#define ROTATED(x, i, j, angle) \
  ((j) < 2 * p.angles ? turn(x##_at2((i) / 2), cosine_at((angle) + (j) / 2), sine_at((angle) + (j) / 2)) \
      : x##_at2((i) / 2))
#else
#define OTHER_HALF(x, i, j) ((j) < p.dim / 2 ? -x##_at((i) + p.dim / 2) : x##_at((i) - p.dim / 2))
#define ROTATED_ELEMENT(x, i, j, angle) \
  (x##_at(i) * cosine_at((angle) + (j)) + OTHER_HALF(x, i, j) * sine_at((angle) + (j)))
#define ROTATED(x, i, j, angle) (float2)(ROTATED_ELEMENT(x, i, j, angle), ROTATED_ELEMENT(x, (i) + 1, (j) + 1, angle))
#endif

KERNEL {
  uint i = 2 * get_global_id(0);
  if (i < p.queries) {
    uint j = i % p.dim, angle = i / p.dim / p.heads * p.angles;
    y_put2(i / 2, ROTATED(q, i, j, angle));
    return;
  }
  i -= p.queries;
  if (i >= 2 * p.count) return;
  uint at = i < p.count ? i : i - p.count;
#ifdef HAS_PLACES
  uint row = p.kv_heads * p.dim;
  int place = places_at(at / row);
  if (place < 0) return;
  uint to = (uint)place * row + at % row;
#else
  uint to = (uint)live_at(p.start) + at;
#endif
  if (i < p.count) {
    uint j = i % p.dim, angle = i / p.dim / p.kv_heads * p.angles;
    keys_put2(to / 2, ROTATED(k, i, j, angle));
  } else
    values_put2(to / 2, v_at2(at / 2));
}
