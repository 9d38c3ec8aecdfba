// softmax(scale * q k^T + mask) v, with CAPPED of softcap * tanh(scores / softcap), over tiles of KEYS keys with a running maximum, so that no row
// of scores leaves the work-group, which takes VECTORS query vectors that share keys: HEADS heads of one group for each of VECTORS / HEADS rows.
// LANES work-items compute the score of a key; then each owns parts (2 or 4 elements) of results, or where there are fewer of these, SLICES of
// them share one (SHARED). With SPLIT a work-group takes so many keys only and stores sums, their maximum and their total, for attention_merge.
// With WINDOW a row sees so many keys at most, up to its own place; none before those of the first row is read, except in its page. With RING a
// cache keeps so many keys, each at its place modulo them. With CAUSAL a row sees keys up to its own place only; tiles that no row of the group sees
// are not read. With tiles the rows are those of sequences in pages of KEYS keys, TILE_GROUPS work-groups for each tile; see paged_attention.rs.
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
// The maximum before the first key. With tiles, which have no masks, keys that a row does not see then have no weight at all.
#ifdef HAS_TILES
#define TOP (LOWEST / 2)
#else
#define TOP LOWEST
#endif
// Of vector r: its row, at most the last one, and its head.
#define ROW(r) min(row0 + (r) / HEADS, last_row)
#define HEAD(r) (head0 + (r) % HEADS)
#define VECTOR(r) ((batch * p.rows + ROW(r)) * p.heads + HEAD(r))
// Number of keys up to the place of a row: `keys` for row BASE. Without tiles the last rows stand at the places of the last keys.
#ifdef HAS_TILES
#define BASE tile_row
#else
#define BASE (p.rows - 1)
#endif
#define SEEN(row) (keys + (row) - BASE)
// Number of keys before the window of a row.
#define HIDDEN(row) (max(keys + (row), BASE + WINDOW) - (BASE + WINDOW))
// Where a key lies, in rows of heads.
#ifdef HAS_TILES
#define PLACE(key) ((page + (key) % KEYS) * p.kv_heads + kv)
#else
#ifdef RING
#define PLACE(key) (((key) % RING) * p.kv_heads + kv)
#else
#define PLACE(key) ((past + (key)) * p.kv_heads + kv)
#endif
#endif

KERNEL {
  __local VEC query[RESULTS];
  __local float weight[LANES * VECTORS * KEYS];
  __local float top[VECTORS], keep[VECTORS];
#ifdef SHARED
  __local VEC part_sum[WG];
  __local float part_total[WG];
#endif
  uint lid = get_local_id(0), head0 = get_group_id(0) * HEADS, kv = head0 / (p.heads / p.kv_heads);
#ifdef HAS_TILES
  uint tile = get_group_id(1) / TILE_GROUPS * 4, tile_row = tiles_at(tile), row_end = tile_row + tiles_at(tile + 1);
  uint row0 = tile_row + get_group_id(1) % TILE_GROUPS * (VECTORS / HEADS), table = tiles_at(tile + 2), keys = tiles_at(tile + 3);
  uint last_row = max(row_end, 1u) - 1;
#else
  uint row0 = get_group_id(1) * (VECTORS / HEADS), row_end = p.rows, last_row = p.rows - 1, keys = live_at(p.live_keys);
#endif
#ifdef WINDOW
  // The first row of the group reaches back furthest.
  uint before = HIDDEN(row0);
#ifdef HAS_TILES
  before -= before % KEYS;
#endif
#else
  uint before = 0;
#endif
#ifdef SPLIT
  uint batch = 0, begin = min(before + (uint)get_group_id(2) * SPLIT, keys), end = min(begin + SPLIT, keys);
#else
  uint batch = get_group_id(2), begin = before, end = keys;
#ifdef CAUSAL
  // The last row of the group sees most.
  end = SEEN(ROW(VECTORS - 1));
#endif
#ifdef HAS_TILES
  if (row0 >= row_end) end = 0;
#endif
#endif
  uint past = batch * p.keys;
  for (uint i = lid; i < VECTORS * DIM; i += WG)
    ((__local float *)query)[i] = q_at(VECTOR(i / DIM) * DIM + i % DIM) * p.scale;
  for (uint r = lid; r < VECTORS; r += WG) top[r] = TOP;
  barrier(CLK_LOCAL_MEM_FENCE);
  VEC sum[OWNED];
  float total[OWNED];
  for (uint i = 0; i < OWNED; i++) {
    sum[i] = (VEC)(0.0f);
    total[i] = 0.0f;
  }
  for (uint first = begin; first < end; first += KEYS) {
#ifdef HAS_TILES
    uint page = pages_at(table + first / KEYS) * KEYS;
#endif
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
      if (key < HIDDEN(ROW(r))) score = LOWEST;
#endif
#ifdef CAUSAL
      if (key >= SEEN(ROW(r))) score = LOWEST;
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
    // One loop, since PoCL 3.1 miscompiles loops over keys within one over vectors. It ends at TILE,
    // not KEYS, so that compilers do not unroll it.
    for (uint i = lid; i < VECTORS * TILE; i += WG) weight[i] = exp(weight[i] - top[i / KEYS]);
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
    if (r >= VECTORS || row0 + r / HEADS >= row_end) continue;
#ifdef SPLIT
    uint at = (get_group_id(2) * p.rows * p.heads + VECTOR(r)) * (PARTS + 1);
    PUT(at + part, sum[i]);
    if (part == 0) PUT(at + PARTS, PAIR(top[r], total[i]));
#else
    PUT(VECTOR(r) * PARTS + part, sum[i] / total[i]);
#endif
  }
}
