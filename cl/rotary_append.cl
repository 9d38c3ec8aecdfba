// The rotary embedding of queries and of new keys, and what an append does with these and with new values, at once. A work-item takes two
// neighbours, with RUNS a row of a head by vectors: of queries first, then of keys, then of values. Angles belong to rows; with NEIGHBOURS one is that
// of two neighbours, and those behind the last angle stay. New rows go to `at` = live[start], even.
#ifdef NEIGHBOURS
inline float2 turn(float2 v, float c, float s) { return (float2)(v.x * c - v.y * s, v.y * c + v.x * s); }

#define TURNED(x, i, j, angle) \
  ((j) < 2 * p.angles ? turn(x##_at2((i) / 2), cosine_at((angle) + (j) / 2), sine_at((angle) + (j) / 2)) : x##_at2((i) / 2))
#else
#define OTHER(x, i, j) ((j) < p.dim / 2 ? -x##_at((i) + p.dim / 2) : x##_at((i) - p.dim / 2))
#define ONE(x, i, j, angle) (x##_at(i) * cosine_at((angle) + (j)) + OTHER(x, i, j) * sine_at((angle) + (j)))
#define TURNED(x, i, j, angle) (float2)(ONE(x, i, j, angle), ONE(x, (i) + 1, (j) + 1, angle))
#endif

#ifdef RUNS
// A row of a head from element i on to element `to` of y.
#ifdef NEIGHBOURS
#define TURN(x, i, y, to, angle) \
  for (uint j = 0; j < p.dim; j += 16) { \
    float16 a = x##_run(16, (i) + j); \
    if (j < 2 * p.angles) { \
      float8 c = cosine_run(8, (angle) + j / 2), s = sine_run(8, (angle) + j / 2), even = a.even; \
      a.even = even * c - a.odd * s; \
      a.odd = a.odd * c + even * s; \
    } \
    y##_put_run(16, (to) + j, a); \
  }
#else
#define TURN(x, i, y, to, angle) \
  for (uint j = 0; j < p.dim / 2; j += 16) { \
    float16 a = x##_run(16, (i) + j), b = x##_run(16, (i) + j + p.dim / 2); \
    y##_put_run(16, (to) + j, a * cosine_run(16, (angle) + j) - b * sine_run(16, (angle) + j)); \
    y##_put_run(16, (to) + j + p.dim / 2, b * cosine_run(16, (angle) + j + p.dim / 2) + a * sine_run(16, (angle) + j + p.dim / 2)); \
  }
#endif

KERNEL {
  uint i = get_global_id(0) * p.dim, to = (uint)live_at(p.start);
  if (i < p.queries) {
    TURN(q, i, y, i, i / p.dim / p.heads * p.angles)
    return;
  }
  i -= p.queries;
  if (i < p.count) {
    TURN(k, i, keys, to + i, i / p.dim / p.kv_heads * p.angles)
    return;
  }
  i -= p.count;
  if (i < p.count)
    for (uint j = 0; j < p.dim; j += 16) values_put_run(16, to + i + j, v_run(16, i + j));
}
#else
KERNEL {
  uint i = 2 * get_global_id(0);
  if (i < p.queries) {
    uint j = i % p.dim, angle = i / p.dim / p.heads * p.angles;
    y_put2(i / 2, TURNED(q, i, j, angle));
    return;
  }
  i -= p.queries;
  uint to = (uint)live_at(p.start);
  if (i < p.count) {
    uint j = i % p.dim, angle = i / p.dim / p.kv_heads * p.angles;
    keys_put2((to + i) / 2, TURNED(k, i, j, angle));
    return;
  }
  i -= p.count;
  if (i < p.count) values_put2((to + i) / 2, v_at2(i / 2));
}
#endif
