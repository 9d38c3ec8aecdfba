// The rotary embedding of queries and of new keys, and what an append does with these and with new values, at once. A work-item takes two
// neighbours, with RUNS a row of a head by vectors: of queries first, then of keys, then of values. Angles belong to rows; new rows go to `at` =
// live[start], even.
#define OTHER(x, i, j) ((j) < p.dim / 2 ? -x##_at((i) + p.dim / 2) : x##_at((i) - p.dim / 2))
#define TURNED(x, i, j, angle) (x##_at(i) * cosine_at((angle) + (j)) + OTHER(x, i, j) * sine_at((angle) + (j)))

#ifdef RUNS
// A row of a head from element i on to element `to` of y.
#define TURN(x, i, y, to, angle) \
  for (uint j = 0; j < p.dim / 2; j += 16) { \
    float16 a = x##_run(16, (i) + j), b = x##_run(16, (i) + j + p.dim / 2); \
    y##_put_run(16, (to) + j, a * cosine_run(16, (angle) + j) - b * sine_run(16, (angle) + j)); \
    y##_put_run(16, (to) + j + p.dim / 2, b * cosine_run(16, (angle) + j + p.dim / 2) + a * sine_run(16, (angle) + j + p.dim / 2)); \
  }

KERNEL {
  uint i = get_global_id(0) * p.dim, to = (uint)live_at(p.start);
  if (i < p.queries) {
    TURN(q, i, y, i, i / p.dim / p.heads * p.dim)
    return;
  }
  i -= p.queries;
  if (i < p.count) {
    TURN(k, i, keys, to + i, i / p.dim / p.kv_heads * p.dim)
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
    uint j = i % p.dim, angle = i / p.dim / p.heads * p.dim;
    y_put2(i / 2, (float2)(TURNED(q, i, j, angle), TURNED(q, i + 1, j + 1, angle)));
    return;
  }
  i -= p.queries;
  uint to = (uint)live_at(p.start);
  if (i < p.count) {
    uint j = i % p.dim, angle = i / p.dim / p.kv_heads * p.dim;
    keys_put2((to + i) / 2, (float2)(TURNED(k, i, j, angle), TURNED(k, i + 1, j + 1, angle)));
    return;
  }
  i -= p.count;
  if (i < p.count) values_put2((to + i) / 2, v_at2(i / 2));
}
#endif
