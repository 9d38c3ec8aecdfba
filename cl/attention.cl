// softmax(scale * q k^T + mask) v, with CAPPED of softcap * tanh(scores / softcap), over tiles of KEYS keys with a running maximum, so that no row
// of scores leaves the work-group, which takes VECTORS query vectors that share keys: HEADS heads of one group for each of VECTORS / HEADS rows.
// LANES work-items compute the score of a key; then each owns parts (2 or 4 elements) of results, or where there are fewer of these, SLICES of
// them share one (SHARED). With SPLIT a work-group takes so many keys only and stores sums, their maximum and their total, for attention_merge.
// With WINDOW a row sees so many keys at most, up to its own place among the last rows; none before those of the first row is read. With RING a
// cache keeps so many keys, each at its place modulo them.
#include "common/lanes"
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
// Part i of a row of keys or values. With Q8 a row is words of four signed bytes, and the factor of all of them.
#ifdef Q8
#define FOUR(word) convert_float4(as_char4(word))
#define K_PART(row, i) FOUR(k_at((row) * (PARTS + 1) + (i)))
#define V_PART(row, i) FOUR(v_at((row) * (PARTS + 1) + (i)))
#define K_SCALE(row) as_float(k_at((row) * (PARTS + 1) + PARTS))
#define V_SCALE(row) as_float(v_at((row) * (PARTS + 1) + PARTS))
#else
#define K_PART(row, i) K_AT((row) * PARTS + (i))
#define V_PART(row, i) V_AT((row) * PARTS + (i))
#define K_SCALE(row) 1.0f
#define V_SCALE(row) 1.0f
#endif
#define RESULTS (VECTORS * PARTS)
// With ROLLED these are numbers that compilers do not know: a loop of loads that is unrolled runs out of registers.
#ifdef ROLLED
#define DOT_PARTS p.parts
#define TILE (p.parts / PARTS * KEYS)
#else
#define DOT_PARTS PARTS
#define TILE (uint)KEYS
#endif
#ifdef SHARED
#define OWNED 1
#define OWN(i) (lid % RESULTS)
#define SLICE (lid / RESULTS)
#else
#define OWNED ((RESULTS + WG - 1) / WG)
#define OWN(i) (lid + (i) * WG)
#define SLICE 0
#endif
#define LOWEST -3.4028235e38f
// Of vector r: its row, at most the last one, and its head.
#define ROW(r) min(row0 + (r) / HEADS, p.rows - 1)
#define HEAD(r) (head0 + (r) % HEADS)
#define VECTOR(r) ((batch * p.rows + ROW(r)) * p.heads + HEAD(r))
// Where a key lies, in rows of heads.
#ifdef RING
#define PLACE(key) (((key) % RING) * p.kv_heads + kv)
#else
#define PLACE(key) ((past + (key)) * p.kv_heads + kv)
#endif

#ifdef LINE
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
#else
#ifdef ITEM
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
  for (uint v = 0; v < 16; v++) {
    _Pragma("unroll") for (uint d = 0; d < DIM; d += 16) vstore16(q_run(16, VECTOR(LANE_OF(v)) * DIM + d) * p.scale, 0, line + d);
    for (uint d = 0; d < DIM; d++) ((float *)(query + d))[v] = line[d];
  }
  for (uint d = 0; d < DIM; d++) sum[d] = (float16)(0.0f);
  for (uint first = begin; first < keys; first += 16) {
    uint count = min((uint)16, keys - first);
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
      uint at = PLACE(min(first + t, keys - 1)) * DIM;
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
          uint own = LANE_OF(v), key = min(first + t, keys - 1);
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
#else
KERNEL {
  __local VEC query[RESULTS];
  __local float weight[LANES * VECTORS * KEYS];
  __local float top[VECTORS], keep[VECTORS];
#ifdef SHARED
  __local VEC part_sum[WG];
  __local float part_total[WG];
#endif
  uint lid = get_local_id(0), head0 = get_group_id(0) * HEADS, row0 = get_group_id(1) * (VECTORS / HEADS);
  uint keys = live_at(p.live_keys), kv = head0 / (p.heads / p.kv_heads);
#ifdef WINDOW
  // The first row of the group reaches back furthest.
  uint before = max(keys + row0 + 1, p.rows + WINDOW) - (p.rows + WINDOW);
#else
  uint before = 0;
#endif
#ifdef SPLIT
  uint batch = 0, begin = min(before + (uint)get_group_id(2) * SPLIT, keys), end = min(begin + SPLIT, keys);
#else
  uint batch = get_group_id(2), begin = before, end = keys;
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
    for (uint at = lid; at < KEYS * LANES; at += WG) {
      uint t = at / LANES, lane = at % LANES, row = PLACE(min(first + t, end - 1));
      VEC dots[VECTORS];
      for (uint r = 0; r < VECTORS; r++) dots[r] = (VEC)(0.0f);
      for (uint i = lane; i < DOT_PARTS; i += LANES) {
        VEC x = K_PART(row, i);
        for (uint r = 0; r < VECTORS; r++) dots[r] += x * query[r * PARTS + i];
      }
      for (uint r = 0; r < VECTORS; r++) weight[(lane * VECTORS + r) * KEYS + t] = dot(dots[r], (VEC)(1.0f));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < VECTORS * KEYS; i += WG) {
      uint r = i / KEYS, t = i % KEYS, key = min(first + t, end - 1);
      float score = weight[i];
      for (uint lane = 1; lane < LANES; lane++) score += weight[lane * (VECTORS * KEYS) + i];
      score *= K_SCALE(PLACE(key));
#ifdef CAPPED
      score = p.softcap * tanh(clamp(score / p.softcap, -20.0f, 20.0f));
#endif
#ifdef HAS_MASK
      score += mask_at(batch * p.mask_b + HEAD(r) * p.mask_h + ROW(r) * p.mask_s + key * p.mask_t);
#endif
#ifdef WINDOW
      if (key + p.rows + WINDOW < keys + ROW(r) + 1) score = LOWEST;
#endif
      weight[i] = first + t < end ? score : LOWEST;
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
    uint count = min(TILE, end - first);
    for (uint i = 0; i < OWNED; i++) {
      uint r = min(OWN(i) / PARTS, (uint)(VECTORS - 1)), part = OWN(i) % PARTS;
      // Chosen by comparisons: an index that compilers cannot compute would keep the sums in memory.
      VEC s = sum[0];
      float l = total[0];
      _Pragma("unroll") for (uint q = 1; q < OWNED; q++) {
        s = q == i ? sum[q] : s;
        l = q == i ? total[q] : l;
      }
      s *= keep[r];
      l *= keep[r];
      for (uint t = SLICE; t < count; t += SLICES) {
        float w = weight[r * KEYS + t];
        uint row = PLACE(first + t);
        s += w * V_SCALE(row) * V_PART(row, part);
        l += w;
      }
      _Pragma("unroll") for (uint q = 0; q < OWNED; q++) {
        sum[q] = q == i ? s : sum[q];
        total[q] = q == i ? l : total[q];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#ifdef SHARED
  part_sum[lid] = sum[0];
  part_total[lid] = total[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (SLICE > 0) return;
  for (uint i = lid + RESULTS; i < SLICES * RESULTS; i += RESULTS) {
    sum[0] += part_sum[i];
    total[0] += part_total[i];
  }
#endif
  for (uint i = 0; i < OWNED; i++) {
    uint r = OWN(i) / PARTS, part = OWN(i) % PARTS;
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
#endif
#endif
