// softmax(scale * q k^T + mask) v, with CAPPED of softcap * tanh(scores / softcap), over tiles of KEYS keys with a running maximum, so that no row of scores leaves the work-group, which takes
// VECTORS query vectors that share keys: HEADS heads of one group for each of VECTORS / HEADS rows. Work-items first own keys, then parts
// (2 or 4 elements) of result rows. With SPLIT a work-group takes so many keys only and stores sums, their maximum and their total, for
// attention_merge.
#ifdef WIDE
#define VEC float4
#define V 4
#define K_AT k_at4
#define V_AT v_at4
#define PUT y_put4
#define PAIR(a, b) ((float4)(a, b, 0.0f, 0.0f))
#else
#define VEC float2
#define V 2
#define K_AT k_at2
#define V_AT v_at2
#define PUT y_put2
#define PAIR(a, b) ((float2)(a, b))
#endif
#define PARTS (DIM / V)
#define OWNED ((VECTORS * PARTS + WG - 1) / WG)
#define LOWEST -3.4028235e38f
// Of vector r: its row, at most the last one, and its head.
#define ROW(r) min(row0 + (r) / HEADS, p.rows - 1)
#define HEAD(r) (head0 + (r) % HEADS)
#define VECTOR(r) ((batch * p.rows + ROW(r)) * p.heads + HEAD(r))

KERNEL {
  __local VEC query[VECTORS * PARTS];
  __local float weight[VECTORS * KEYS];
  __local float top[VECTORS], keep[VECTORS];
  uint lid = get_local_id(0), head0 = get_group_id(0) * HEADS, row0 = get_group_id(1) * (VECTORS / HEADS);
  uint keys = live_at(p.live_keys), kv = head0 / (p.heads / p.kv_heads);
#ifdef SPLIT
  uint batch = 0, begin = min((uint)get_group_id(2) * SPLIT, keys), end = min(begin + SPLIT, keys);
#else
  uint batch = get_group_id(2), begin = 0, end = keys;
#endif
  uint past = batch * p.keys;
  for (uint i = lid; i < VECTORS * DIM; i += WG)
    ((__local float *)query)[i] = q_at(VECTOR(i / DIM) * DIM + i % DIM) * p.scale;
  for (uint r = lid; r < VECTORS; r += WG) top[r] = LOWEST;
  barrier(CLK_LOCAL_MEM_FENCE);
  VEC sum[OWNED];
  float total[OWNED];
  for (uint i = 0; i < OWNED; i++) {
    sum[i] = (VEC)(0.0f);
    total[i] = 0.0f;
  }
  for (uint first = begin; first < end; first += KEYS) {
    for (uint t = lid; t < KEYS; t += WG) {
      uint key = min(first + t, end - 1), base = ((past + key) * p.kv_heads + kv) * PARTS;
      VEC dots[VECTORS];
      for (uint r = 0; r < VECTORS; r++) dots[r] = (VEC)(0.0f);
      for (uint i = 0; i < PARTS; i++) {
        VEC x = K_AT(base + i);
        for (uint r = 0; r < VECTORS; r++) dots[r] += x * query[r * PARTS + i];
      }
      for (uint r = 0; r < VECTORS; r++) {
        float score = dot(dots[r], (VEC)(1.0f));
#ifdef CAPPED
        score = p.softcap * tanh(clamp(score / p.softcap, -20.0f, 20.0f));
#endif
#ifdef HAS_MASK
        score += mask_at(batch * p.mask_b + HEAD(r) * p.mask_h + ROW(r) * p.mask_s + key * p.mask_t);
#endif
        weight[r * KEYS + t] = first + t < end ? score : LOWEST;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = lid; r < VECTORS; r += WG) {
      float4 high = (float4)(top[r]);
      for (uint t = 0; t < KEYS / 4; t++) high = fmax(high, vload4(r * (KEYS / 4) + t, weight));
      float next = fmax(fmax(high.x, high.y), fmax(high.z, high.w));
      keep[r] = exp(top[r] - next);
      top[r] = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = 0; r < VECTORS; r++)
      for (uint t = lid; t < KEYS; t += WG) weight[r * KEYS + t] = exp(weight[r * KEYS + t] - top[r]);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint count = min((uint)KEYS, end - first);
    for (uint i = 0; i < OWNED; i++) {
      uint r = min((lid + i * WG) / PARTS, (uint)(VECTORS - 1)), part = (lid + i * WG) % PARTS;
      VEC s = sum[i] * keep[r];
      float l = total[i] * keep[r];
      for (uint t = 0; t < count; t++) {
        float w = weight[r * KEYS + t];
        s += w * V_AT(((past + first + t) * p.kv_heads + kv) * PARTS + part);
        l += w;
      }
      sum[i] = s;
      total[i] = l;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint i = 0; i < OWNED; i++) {
    uint r = (lid + i * WG) / PARTS, part = (lid + i * WG) % PARTS;
    if (r >= VECTORS || row0 + r / HEADS >= p.rows) continue;
#ifdef SPLIT
    uint at = (get_group_id(2) * p.rows * p.heads + VECTOR(r)) * (PARTS + 1);
    PUT(at + part, sum[i]);
    if (part == 0) PUT(at + PARTS, PAIR(top[r], total[i]));
#else
    PUT(VECTOR(r) * PARTS + part, sum[i] / total[i]);
#endif
  }
}
