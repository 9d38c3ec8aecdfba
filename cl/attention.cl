// softmax(scale * q k^T + mask) v for ROWS query rows of one head of a batch a work-group, over tiles of KEYS keys with a running maximum, so
// that no row of scores leaves the work-group. Work-items first own keys, then parts (2 or 4 elements) of result rows.
#ifdef WIDE
#define VEC float4
#define V 4
#define K_AT k_at4
#define V_AT v_at4
#define PUT y_put4
#else
#define VEC float2
#define V 2
#define K_AT k_at2
#define V_AT v_at2
#define PUT y_put2
#endif
#define PARTS (DIM / V)
#define OWNED ((ROWS * PARTS + WG - 1) / WG)

KERNEL {
  __local VEC query[ROWS * PARTS];
  __local float weight[ROWS * KEYS];
  uint lid = get_local_id(0), head = get_group_id(0), row0 = get_group_id(1) * ROWS;
  uint keys = live_at(p.live_keys);
  uint kv = head / (p.heads / p.kv_heads), batch = get_group_id(2);
  uint queries = batch * p.rows, past = batch * p.keys;
  for (uint i = lid; i < ROWS * DIM; i += WG) {
    uint row = min(row0 + i / DIM, p.rows - 1);
    ((__local float *)query)[i] = q_at(((queries + row) * p.heads + head) * DIM + i % DIM) * p.scale;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float top[ROWS];
  for (uint r = 0; r < ROWS; r++) top[r] = -3.4028235e38f;
  VEC sum[OWNED];
  float total[OWNED];
  for (uint i = 0; i < OWNED; i++) {
    sum[i] = (VEC)(0.0f);
    total[i] = 0.0f;
  }
  for (uint first = 0; first < keys; first += KEYS) {
    for (uint t = lid; t < KEYS; t += WG) {
      uint key = min(first + t, keys - 1), base = ((past + key) * p.kv_heads + kv) * PARTS;
      VEC dots[ROWS];
      for (uint r = 0; r < ROWS; r++) dots[r] = (VEC)(0.0f);
      for (uint i = 0; i < PARTS; i++) {
        VEC x = K_AT(base + i);
        for (uint r = 0; r < ROWS; r++) dots[r] += x * query[r * PARTS + i];
      }
      for (uint r = 0; r < ROWS; r++) {
        float score = dot(dots[r], (VEC)(1.0f));
#ifdef HAS_MASK
        score += mask_at(batch * p.mask_b + head * p.mask_h + min(row0 + r, p.rows - 1) * p.mask_s + key * p.mask_t);
#endif
        weight[r * KEYS + t] = first + t < keys ? score : -3.4028235e38f;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float keep[ROWS];
    for (uint r = 0; r < ROWS; r++) {
      float4 high = (float4)(top[r]);
      for (uint t = 0; t < KEYS / 4; t++) high = fmax(high, vload4(r * (KEYS / 4) + t, weight));
      float next = fmax(fmax(high.x, high.y), fmax(high.z, high.w));
      keep[r] = exp(top[r] - next);
      top[r] = next;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint r = 0; r < ROWS; r++)
      for (uint t = lid; t < KEYS; t += WG) weight[r * KEYS + t] = exp(weight[r * KEYS + t] - top[r]);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint count = min((uint)KEYS, keys - first);
    for (uint i = 0; i < OWNED; i++) {
      uint r = min((lid + i * WG) / PARTS, (uint)(ROWS - 1)), part = (lid + i * WG) % PARTS;
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
    if (r < ROWS && row0 + r < p.rows) PUT(((queries + row0 + r) * p.heads + head) * PARTS + part, sum[i] / total[i]);
  }
}
