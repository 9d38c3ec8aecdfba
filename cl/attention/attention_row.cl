// softmax(scale * q k^T + mask) v for one row of halves, or with CAPPED of softcap * tanh(scores /
// softcap). With HAS_TILES, for rows of several sequences in pages of PAGE keys, described by
// tiles.
//
// A work-group takes one head, and its warps alternate between groups of keys. LANES work-items
// take eight neighbouring elements each of a key and of a value, and STEPS keys at a time. Each
// group of LANES work-items has its own running maximum; the groups are merged at the end.
//
// With SPLIT, a work-group takes SPLIT keys and stores sums, their maximum and their total: for
// attention_merge, or with HAS_FOUND in `found`, for the work-group of the head that finishes last
// according to `counts`. With WINDOW, which excludes SPLIT, a row sees at most WINDOW keys.
#include "common/mma"
#define LANES (DIM / 8)
#define PIECES (DIM / 4)
#define STORE_RESULT { \
    y_put4(vector * PIECES + 2 * lid, all.lo / total); \
    y_put4(vector * PIECES + 2 * lid + 1, all.hi / total); \
  }
#ifdef SPLIT
#ifdef HAS_FOUND
#define STORE STORE_RESULT
#else
#define STORE { \
    uint at = (get_group_id(2) * p.heads + head) * (PIECES + 1); \
    y_put4(at + 2 * lid, all.lo); \
    y_put4(at + 2 * lid + 1, all.hi); \
    if (lid == 0) y_put4(at + PIECES, (float4)(top, total, 0.0f, 0.0f)); \
  }
#endif
#else
#define STORE STORE_RESULT
#endif
#define WARPS (WG / 32)
#define KEYS_AT_ONCE (32 / LANES)
#define TILE (WARPS * STEPS * KEYS_AT_ONCE)
#define LOWEST -3.4028235e38f
#define PAGE 64
// The position of a key in the cache, in rows.
#ifdef HAS_TILES
#define KEY_ROW(key) (pages_at(table + (key) / PAGE) * PAGE + (key) % PAGE)
#else
#define KEY_ROW(key) (key)
#endif
#define UNPACK_EIGHT(to, word) { \
    FLOATS_OF(to[0], to[1], (word).x); \
    FLOATS_OF(to[2], to[3], (word).y); \
    FLOATS_OF(to[4], to[5], (word).z); \
    FLOATS_OF(to[6], to[7], (word).w); \
  }
// Merges the results of the groups of work-items whose numbers differ in the bit `apart`.
#define MERGE_GROUPS(apart) { \
    float other_top, other_total; \
    WARP_EXCHANGE(other_top, top, apart); \
    WARP_EXCHANGE(other_total, total, apart); \
    float next = fmax(top, other_top), keep = exp(top - next), scale = exp(other_top - next); \
    total = total * keep + other_total * scale; \
    top = next; \
    _Pragma("unroll") for (uint i = 0; i < 8; i++) { \
      float other_sum; \
      WARP_EXCHANGE(other_sum, sum[i], apart); \
      sum[i] = sum[i] * keep + other_sum * scale; \
    } \
  }
// Merges the results of the groups of a warp, for each of them.
#ifdef DIM_FROM_256
#define MERGE_WARP
#else
#ifdef DIM_FROM_128
#define MERGE_WARP MERGE_GROUPS(16)
#else
#define MERGE_WARP MERGE_GROUPS(16) MERGE_GROUPS(8)
#endif
#endif
// Stores the result of a warp for the others.
#define STORE_WARP \
  if (lid % 32 < LANES) { \
    vstore8((float8)(sum[0], sum[1], sum[2], sum[3], sum[4], sum[5], sum[6], sum[7]), warp * LANES + lane, sums); \
    tops[warp] = top; \
    totals[warp] = total; \
  }
// Merges the results of the warps in the first LANES work-items, each for eight neighbouring
// elements.
#define MERGE_WARPS \
  if (lid < LANES) { \
    all = (float8)(0.0f); \
    top = tops[0]; \
    total = 0.0f; \
    for (uint w = 1; w < WARPS; w++) top = fmax(top, tops[w]); \
    for (uint w = 0; w < WARPS; w++) { \
      float scale = exp(fmax(tops[w] - top, -200.0f)); \
      all += scale * vload8(w * LANES + lid, sums); \
      total += scale * totals[w]; \
    } \
  }

KERNEL {
  __local float sums[WARPS * DIM], tops[WARPS], totals[WARPS];
  uint lid = get_local_id(0), warp = lid / 32, lane = lid % LANES, group = lid % 32 / LANES;
  uint head = get_group_id(0), kv = head / (p.heads / p.kv_heads), vector = head;
#ifdef HAS_TILES
  // The number of keys that the row sees, and the start of its pages; 0 if it is in no tile.
  __local uint of_row[2];
  uint row = get_group_id(1);
  vector += row * p.heads;
  if (lid == 0) of_row[0] = of_row[1] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = lid; i < p.tile_count; i += WG) {
    uint tile_row = tiles_at(4 * i);
    if (row >= tile_row && row < tile_row + tiles_at(4 * i + 1)) {
      of_row[0] = tiles_at(4 * i + 3) + row - tile_row;
      of_row[1] = tiles_at(4 * i + 2);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  uint keys = of_row[0], table = of_row[1];
#else
  uint keys = live_at(p.live_keys);
#endif
#ifdef SPLIT
  uint begin = min((uint)get_group_id(2) * SPLIT, keys), end = min(begin + SPLIT, keys);
#else
#ifdef WINDOW
  uint begin = max(keys, (uint)WINDOW) - WINDOW, end = keys;
#else
  uint begin = 0, end = keys;
#endif
#endif
  __global const uint4 *k_at = k + kv * LANES + lane, *v_at = v + kv * LANES + lane;
  uint4 query_words = q[vector * LANES + lane];
  float query[8], sum[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}, top = LOWEST / 2, total = 0.0f;
  UNPACK_EIGHT(query, query_words)
  for (uint first = begin; first < end; first += TILE) {
    uint4 key_words[STEPS], value_words[STEPS];
    float score[STEPS], high = top;
    uint from = first + (warp * STEPS) * KEYS_AT_ONCE + group;
    _Pragma("unroll") for (uint s = 0; s < STEPS; s++) {
      uint at = KEY_ROW(min(from + s * KEYS_AT_ONCE, end - 1)) * p.kv_heads * LANES;
      key_words[s] = k_at[at];
      value_words[s] = v_at[at];
#ifdef HAS_MASK
      score[s] = mask_at(head * p.mask_h + min(from + s * KEYS_AT_ONCE, end - 1) * p.mask_t);
#else
      score[s] = 0.0f;
#endif
    }
    _Pragma("unroll") for (uint s = 0; s < STEPS; s++) {
      float key[8], dot = 0.0f;
      UNPACK_EIGHT(key, key_words[s])
      _Pragma("unroll") for (uint i = 0; i < 8; i++) dot += query[i] * key[i];
#ifdef DIM_FROM_256
      WARP_SUM(dot, 16);
#endif
#ifdef DIM_FROM_128
      WARP_SUM(dot, 8);
#endif
      WARP_SUM(dot, 4);
      WARP_SUM(dot, 2);
      WARP_SUM(dot, 1);
      dot *= p.scale;
#ifdef CAPPED
      dot = p.softcap * tanh(clamp(dot / p.softcap, -20.0f, 20.0f));
#endif
      score[s] = from + s * KEYS_AT_ONCE < end ? dot + score[s] : LOWEST;
      high = fmax(high, score[s]);
    }
    float keep = exp(fmax(top - high, -200.0f));
    top = high;
    total *= keep;
    _Pragma("unroll") for (uint i = 0; i < 8; i++) sum[i] *= keep;
    _Pragma("unroll") for (uint s = 0; s < STEPS; s++) {
      float value[8], weight = exp(fmax(score[s] - high, -200.0f));
      UNPACK_EIGHT(value, value_words[s])
      total += weight;
      _Pragma("unroll") for (uint i = 0; i < 8; i++) sum[i] += weight * value[i];
    }
  }
  MERGE_WARP
  STORE_WARP
  barrier(CLK_LOCAL_MEM_FENCE);
  float8 all;
  MERGE_WARPS
#ifdef HAS_FOUND
  __local uint counted;
  // The partial results of a head are adjacent, so that the last work-group reads them
  // contiguously.
  __global float4 *own = (__global float4 *)found + (head * p.splits + get_group_id(2)) * (PIECES + 1);
  if (lid < 32) {
    if (lid < LANES) {
      own[2 * lid] = all.lo;
      own[2 * lid + 1] = all.hi;
    }
    if (lid == 0) own[PIECES] = (float4)(top, total, 0.0f, 0.0f);
    WARP_BARRIER();
    if (lid == 0) {
      uint before;
      ATOMIC_COUNT(before, counts + head, p.splits - 1);
      counted = before;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (counted + 1 < p.splits) return;
  volatile __global const float4 *from = (volatile __global const float4 *)found + head * p.splits * (PIECES + 1);
  _Pragma("unroll") for (uint i = 0; i < 8; i++) sum[i] = 0.0f;
  top = LOWEST;
  total = 0.0f;
  for (uint s = lid / LANES; s < p.splits; s += WG / LANES) {
    float4 end_of = from[s * (PIECES + 1) + PIECES];
    float4 low = from[s * (PIECES + 1) + 2 * lane], high = from[s * (PIECES + 1) + 2 * lane + 1];
    float next = fmax(top, end_of.x), keep = exp(top - next), scale = exp(end_of.x - next);
    float found_sum[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    _Pragma("unroll") for (uint i = 0; i < 8; i++) sum[i] = sum[i] * keep + found_sum[i] * scale;
    total = total * keep + end_of.y * scale;
    top = next;
  }
  MERGE_WARP
  STORE_WARP
  barrier(CLK_LOCAL_MEM_FENCE);
  MERGE_WARPS
#endif
  if (lid >= LANES) return;
  STORE
}
