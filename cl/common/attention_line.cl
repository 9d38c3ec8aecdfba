// One row: a work-item takes HEADS heads that share keys, and walks over tiles of 16 of these, by vectors along the heads.
#define CHUNKS (DIM / 16)
#define EACH_CHUNK(c) _Pragma("unroll") for (uint c = 0; c < CHUNKS; c++)
#define EACH_HEAD(h) _Pragma("unroll") for (uint h = 0; h < HEADS; h++)

KERNEL {
  uint head0 = get_group_id(0) * HEADS, keys = live_at(p.live_keys), kv = head0 / (p.heads / p.kv_heads), past = 0;
#ifdef WINDOW
  uint before = max(keys, (uint)WINDOW) - WINDOW;
#else
  uint before = 0;
#endif
#ifdef SPLIT
  uint begin = min(before + (uint)get_group_id(2) * SPLIT, keys), end = min(begin + SPLIT, keys);
#else
  uint begin = before, end = keys;
#endif
  float16 query[HEADS * CHUNKS], sum[HEADS * CHUNKS];
  float top[HEADS], total[HEADS], line[HEADS * 16];
  EACH_HEAD(h) {
    top[h] = LOWEST;
    total[h] = 0.0f;
    EACH_CHUNK(c) {
      query[h * CHUNKS + c] = q_run(16, (head0 + h) * DIM + 16 * c) * p.scale;
      sum[h * CHUNKS + c] = (float16)(0.0f);
    }
  }
  for (uint first = begin; first < end; first += 16) {
    uint count = min((uint)16, end - first);
    for (uint t = 0; t < 16; t++) {
      uint at = PLACE(min(first + t, end - 1)) * DIM;
      float16 key[CHUNKS];
      EACH_CHUNK(c) key[c] = k_run(16, at + 16 * c);
      EACH_HEAD(h) {
        float16 dots = query[h * CHUNKS] * key[0];
        _Pragma("unroll") for (uint c = 1; c < CHUNKS; c++) dots += query[h * CHUNKS + c] * key[c];
        line[h * 16 + t] = lanes_sum(dots);
      }
    }
    EACH_HEAD(h) {
      float16 score = vload16(h, line);
#ifdef CAPPED
      score = p.softcap * tanh(clamp(score / p.softcap, -20.0f, 20.0f));
#endif
#ifdef HAS_MASK
      for (uint t = 0; t < 16; t++) line[h * 16 + t] = mask_at((head0 + h) * p.mask_h + min(first + t, end - 1) * p.mask_t);
      score += vload16(h, line);
#endif
      int16 place = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      score = place < (int)count ? score : (float16)(LOWEST);
      float next = fmax(top[h], lanes_max(score)), keep = exp(top[h] - next);
      // Where the mask is the least float, keys that are not there would count as much as the hidden ones.
      score = place < (int)count ? exp(score - next) : (float16)(0.0f);
      total[h] = total[h] * keep + lanes_sum(score);
      top[h] = next;
      vstore16(score, h, line);
      EACH_CHUNK(c) sum[h * CHUNKS + c] *= keep;
    }
    for (uint t = 0; t < count; t++) {
      uint at = PLACE(first + t) * DIM;
      EACH_CHUNK(c) {
        float16 value = v_run(16, at + 16 * c);
        EACH_HEAD(h) sum[h * CHUNKS + c] += line[h * 16 + t] * value;
      }
    }
  }
  EACH_HEAD(h) {
#ifdef SPLIT
    uint at = (get_group_id(2) * p.heads + head0 + h) * (DIM + V);
    EACH_CHUNK(c) y_put_run(16, at + 16 * c, sum[h * CHUNKS + c]);
    PUT(at / V + PARTS, PAIR(top[h], total[h]));
#else
    EACH_CHUNK(c) y_put_run(16, (head0 + h) * DIM + 16 * c, sum[h * CHUNKS + c] / total[h]);
#endif
  }
}
