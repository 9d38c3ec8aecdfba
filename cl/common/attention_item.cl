// A work-item takes up to 16 query vectors, one in each lane, so that nothing goes from lane to lane, and walks over tiles of 16 keys. Keys and
// values become floats once for all lanes. A tile that the mask hides from all rows is passed over once each of them has seen a key: scores are
// taken to be less than 30000 apart. A row that sees none has the softmax over all keys, as they are hidden alike.
#define LANE_OF(v) (((v) & 15) < VECTORS ? ((v) & 15) : 0)
#define EACH(i) _Pragma("unroll") for (uint i = 0; i < 16; i++)
#define MASK_RUN(r) mask_run(16, batch * p.mask_b + head0 * p.mask_h + min(row0 + (r), p.rows - 1) * p.mask_s + first)

KERNEL {
  float16 query[DIM], sum[DIM], score[16], top = (float16)(LOWEST), total = (float16)(0.0f);
  float keys_of[16 * DIM], values_of[16 * DIM], line[DIM], hidden[256];
  uint head0 = get_group_id(0) * HEADS, row0 = get_group_id(1) * (VECTORS / HEADS), batch = get_group_id(2);
  uint keys = live_at(p.live_keys), kv = head0 / (p.heads / p.kv_heads), past = batch * p.keys;
#ifdef WINDOW
  // The first row of the group reaches back furthest.
  uint begin = max(keys + row0 + 1, p.rows + WINDOW) - (p.rows + WINDOW);
#else
  uint begin = 0;
#endif
#ifdef CAUSAL
  // The last row of the group sees most.
  uint end = SEEN(ROW(VECTORS - 1));
  uint16 seen;
  for (uint v = 0; v < 16; v++) ((uint *)&seen)[v] = SEEN(ROW(LANE_OF(v)));
#else
  uint end = keys;
#endif
  for (uint v = 0; v < 16; v++) {
    _Pragma("unroll") for (uint d = 0; d < DIM; d += 16) vstore16(q_run(16, VECTOR(LANE_OF(v)) * DIM + d) * p.scale, 0, line + d);
    for (uint d = 0; d < DIM; d++) ((float *)(query + d))[v] = line[d];
  }
  for (uint d = 0; d < DIM; d++) sum[d] = (float16)(0.0f);
  for (uint first = begin; first < end; first += 16) {
    uint count = min((uint)16, end - first);
#ifdef HAS_MASK
    // What all rows see, or none, needs no look at single places.
    int masked = 1;
    if (p.mask_t == 1 && p.mask_h == 0 && count == 16) {
      float16 least = MASK_RUN(0), most = least;
      for (uint r = 1; r < VECTORS / HEADS; r++) {
        float16 m = MASK_RUN(r);
        least = fmin(least, m);
        most = fmax(most, m);
      }
      if (lanes_max(most) <= MASK_MIN && -lanes_max(-top) > MASK_MIN / 2) continue;
      masked = lanes_max(-least) != 0.0f || lanes_max(most) != 0.0f;
    }
#endif
    for (uint t = 0; t < 16; t++) {
      uint at = PLACE(min(first + t, end - 1)) * DIM;
      _Pragma("unroll") for (uint d = 0; d < DIM; d += 16) {
        vstore16(k_run(16, at + d), 0, keys_of + t * DIM + d);
        vstore16(v_run(16, at + d), 0, values_of + t * DIM + d);
      }
    }
    EACH(t) score[t] = (float16)(0.0f);
    for (uint d = 0; d < DIM; d++) {
      float16 own = query[d];
      EACH(t) score[t] += own * keys_of[t * DIM + d];
    }
#ifdef CAPPED
    EACH(t) score[t] = p.softcap * tanh(clamp(score[t] / p.softcap, -20.0f, 20.0f));
#endif
#ifdef HAS_MASK
    if (masked) {
      for (uint t = 0; t < 16; t++)
        for (uint v = 0; v < 16; v++) {
          uint own = LANE_OF(v), key = min(first + t, end - 1);
          hidden[t * 16 + v] = mask_at(batch * p.mask_b + HEAD(own) * p.mask_h + ROW(own) * p.mask_s + key * p.mask_t);
        }
      EACH(t) score[t] += vload16(t, hidden);
    }
#endif
#ifdef WINDOW
    for (uint t = 0; t < 16; t++)
      for (uint v = 0; v < 16; v++)
        hidden[t * 16 + v] = first + t + p.rows + WINDOW < keys + ROW(LANE_OF(v)) + 1 ? LOWEST / 2 : 0.0f;
    EACH(t) score[t] += vload16(t, hidden);
#endif
#ifdef CAUSAL
    if (first + 16 > SEEN(row0)) EACH(t) score[t] = (uint16)(first + t) < seen ? score[t] : (float16)(LOWEST);
#endif
    EACH(t) score[t] = t < count ? score[t] : (float16)(LOWEST);
    float16 next = top, keep;
    EACH(t) next = fmax(next, score[t]);
    keep = exp(top - next);
    top = next;
    total *= keep;
    // Where the mask is the least float, keys that are not there would count as much as the hidden ones.
    EACH(t) {
      score[t] = t < count ? exp(score[t] - next) : (float16)(0.0f);
      total += score[t];
    }
    for (uint d = 0; d < DIM; d++) {
      float16 own = sum[d] * keep;
      EACH(t) own += score[t] * values_of[t * DIM + d];
      sum[d] = own;
    }
  }
  total = 1.0f / fmax(total, 1.0e-30f);
  for (uint v = 0; v < VECTORS; v++) {
    if (row0 + v / HEADS >= p.rows) continue;
    for (uint d = 0; d < DIM; d++) line[d] = ((float *)(sum + d))[v] * ((float *)&total)[v];
    _Pragma("unroll") for (uint d = 0; d < DIM; d += 16) y_put_run(16, VECTOR(v) * DIM + d, vload16(0, line + d));
  }
}
