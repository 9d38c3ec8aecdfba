// softmax(scale * q k^T + mask) v, or with CAPPED of softcap * tanh(scores / softcap).
//
// The keys are processed in tiles of KEYS keys with a running maximum, so that no row of scores
// leaves the work-group. A work-group takes VECTORS query vectors that share keys: HEADS heads of
// one group for each of VECTORS / HEADS rows. LANES work-items compute the score of a key. Then
// each work-item computes pieces of results, of 2 or 4 elements. If there are fewer pieces than
// work-items, SLICES work-items share a piece (SHARED).
//
// With SPLIT, a work-group takes SPLIT keys and stores sums, their maximum and their total for
// attention_merge. With WINDOW, a row sees at most WINDOW keys, the last of which is at its own
// position. Keys before the window of the first row are not read, except in its page. With RING,
// the cache keeps RING keys, and key i is at position i % RING.
//
// With CAUSAL, a row sees keys up to its own position. Tiles that no row of the work-group sees are
// not read. With HAS_TILES, the rows are those of sequences in pages of KEYS keys, with TILE_GROUPS
// work-groups for each tile; see paged_attention.rs.
#ifdef WIDE
#define VEC float4
#define WIDTH 4
#define K_AT k_at4
#define V_AT v_at4
#define PUT y_put4
#define PAIR(a, b) ((float4)(a, b, 0.0f, 0.0f))
#else
#define VEC float2
#define WIDTH 2
#define K_AT k_at2
#define V_AT v_at2
#define PUT y_put2
#define PAIR(a, b) ((float2)(a, b))
#endif
#define PIECES (DIM / WIDTH)
// Piece i of a row of keys or values. With Q8, a row consists of words of four signed bytes,
// followed by the factor of all of them.
#ifdef Q8
#define BYTES_TO_FLOATS(word) convert_float4(as_char4(word))
#define K_PIECE(row, i) BYTES_TO_FLOATS(k_at((row) * (PIECES + 1) + (i)))
#define V_PIECE(row, i) BYTES_TO_FLOATS(v_at((row) * (PIECES + 1) + (i)))
#define K_SCALE(row) as_float(k_at((row) * (PIECES + 1) + PIECES))
#define V_SCALE(row) as_float(v_at((row) * (PIECES + 1) + PIECES))
#else
#define K_PIECE(row, i) K_AT((row) * PIECES + (i))
#define V_PIECE(row, i) V_AT((row) * PIECES + (i))
#define K_SCALE(row) 1.0f
#define V_SCALE(row) 1.0f
#endif
#define RESULTS (VECTORS * PIECES)
// With ROLLED, these numbers are unknown to compilers, which would otherwise unroll a loop of loads
// and run out of registers.
#ifdef ROLLED
#define DOT_PIECES p.pieces
#define TILE (p.pieces / PIECES * KEYS)
#else
#define DOT_PIECES PIECES
#define TILE (uint)KEYS
#endif
#ifdef SHARED
#define RESULTS_PER_ITEM 1
#define RESULT_INDEX(i) (lid % RESULTS)
#define SLICE (lid / RESULTS)
#else
#define RESULTS_PER_ITEM ((RESULTS + WG - 1) / WG)
#define RESULT_INDEX(i) (lid + (i) * WG)
#define SLICE 0
#endif
#define LOWEST -3.4028235e38f
// The maximum before the first key. With tiles, which have no masks, it gives keys that a row does
// not see a weight of exactly 0.
#ifdef HAS_TILES
#define INITIAL_MAX (LOWEST / 2)
#else
#define INITIAL_MAX LOWEST
#endif
// The row of vector r, at most the last one; its head; and its position in q.
#define ROW(r) min(row0 + (r) / HEADS, last_row)
#define HEAD(r) (head0 + (r) % HEADS)
#define VECTOR(r) ((batch * p.rows + ROW(r)) * p.heads + HEAD(r))
// Number of keys up to the position of a row: `keys` for row BASE_ROW. Without tiles, the last rows
// are at the positions of the last keys.
#ifdef HAS_TILES
#define BASE_ROW tile_row
#else
#define BASE_ROW (p.rows - 1)
#endif
#define KEYS_UP_TO(row) (keys + (row) - BASE_ROW)
// Number of keys before the window of a row.
#define KEYS_BEFORE(row) (max(keys + (row), BASE_ROW + WINDOW) - (BASE_ROW + WINDOW))
// The position of a key in the cache, in rows of heads.
#ifdef HAS_TILES
#define KEY_ROW(key) ((page + (key) % KEYS) * p.kv_heads + kv)
#else
#ifdef RING
#define KEY_ROW(key) (((key) % RING) * p.kv_heads + kv)
#else
#define KEY_ROW(key) ((past + (key)) * p.kv_heads + kv)
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
  uint row0 = tile_row + get_group_id(1) % TILE_GROUPS * (VECTORS / HEADS), table = tiles_at(tile + 2),
      keys = tiles_at(tile + 3);
  uint last_row = max(row_end, 1u) - 1;
#else
  uint row0 = get_group_id(1) * (VECTORS / HEADS), row_end = p.rows, last_row = p.rows - 1, keys = live_at(p.live_keys);
#endif
#ifdef WINDOW
  // The window of the first row begins first.
  uint before = KEYS_BEFORE(row0);
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
  // The last row of the group sees the most keys.
  end = KEYS_UP_TO(ROW(VECTORS - 1));
#endif
#ifdef HAS_TILES
  if (row0 >= row_end) end = 0;
#endif
#endif
  uint past = batch * p.keys;
  for (uint i = lid; i < VECTORS * DIM; i += WG)
    ((__local float *)query)[i] = q_at(VECTOR(i / DIM) * DIM + i % DIM) * p.scale;
  for (uint r = lid; r < VECTORS; r += WG) top[r] = INITIAL_MAX;
  barrier(CLK_LOCAL_MEM_FENCE);
  VEC sum[RESULTS_PER_ITEM];
  float total[RESULTS_PER_ITEM];
  for (uint i = 0; i < RESULTS_PER_ITEM; i++) {
    sum[i] = (VEC)(0.0f);
    total[i] = 0.0f;
  }
  for (uint first = begin; first < end; first += KEYS) {
#ifdef HAS_TILES
    uint page = pages_at(table + first / KEYS) * KEYS;
#endif
    for (uint at = lid; at < KEYS * LANES; at += WG) {
      uint t = at / LANES, lane = at % LANES, row = KEY_ROW(min(first + t, end - 1));
      VEC dots[VECTORS];
      for (uint r = 0; r < VECTORS; r++) dots[r] = (VEC)(0.0f);
      for (uint i = lane; i < DOT_PIECES; i += LANES) {
        VEC x = K_PIECE(row, i);
        for (uint r = 0; r < VECTORS; r++) dots[r] += x * query[r * PIECES + i];
      }
      for (uint r = 0; r < VECTORS; r++) weight[(lane * VECTORS + r) * KEYS + t] = dot(dots[r], (VEC)(1.0f));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = lid; i < VECTORS * KEYS; i += WG) {
      uint r = i / KEYS, t = i % KEYS, key = min(first + t, end - 1);
      float score = weight[i];
      for (uint lane = 1; lane < LANES; lane++) score += weight[lane * (VECTORS * KEYS) + i];
      score *= K_SCALE(KEY_ROW(key));
#ifdef CAPPED
      score = p.softcap * tanh(clamp(score / p.softcap, -20.0f, 20.0f));
#endif
#ifdef HAS_MASK
      score += mask_at(batch * p.mask_b + HEAD(r) * p.mask_h + ROW(r) * p.mask_s + key * p.mask_t);
#endif
#ifdef WINDOW
      if (key < KEYS_BEFORE(ROW(r))) score = LOWEST;
#endif
#ifdef CAUSAL
      if (key >= KEYS_UP_TO(ROW(r))) score = LOWEST;
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
    // A single loop, since PoCL 3.1 miscompiles loops over keys within a loop over vectors. It ends
    // at TILE, not KEYS, so that compilers do not unroll it.
    for (uint i = lid; i < VECTORS * TILE; i += WG) weight[i] = exp(weight[i] - top[i / KEYS]);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint count = min(TILE, end - first);
    for (uint i = 0; i < RESULTS_PER_ITEM; i++) {
      uint r = min(RESULT_INDEX(i) / PIECES, (uint)(VECTORS - 1)), piece = RESULT_INDEX(i) % PIECES;
      // Selected by comparisons: an index unknown to the compiler would keep the sums in memory.
      VEC s = sum[0];
      float l = total[0];
      _Pragma("unroll") for (uint q = 1; q < RESULTS_PER_ITEM; q++) {
        s = q == i ? sum[q] : s;
        l = q == i ? total[q] : l;
      }
      s *= keep[r];
      l *= keep[r];
      for (uint t = SLICE; t < count; t += SLICES) {
        float w = weight[r * KEYS + t];
        uint row = KEY_ROW(first + t);
        s += w * V_SCALE(row) * V_PIECE(row, piece);
        l += w;
      }
      _Pragma("unroll") for (uint q = 0; q < RESULTS_PER_ITEM; q++) {
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
  for (uint i = 0; i < RESULTS_PER_ITEM; i++) {
    uint r = RESULT_INDEX(i) / PIECES, piece = RESULT_INDEX(i) % PIECES;
    if (r >= VECTORS || row0 + r / HEADS >= row_end) continue;
#ifdef SPLIT
    uint at = (get_group_id(2) * p.rows * p.heads + VECTOR(r)) * (PIECES + 1);
    PUT(at + piece, sum[i]);
    if (piece == 0) PUT(at + PIECES, PAIR(top[r], total[i]));
#else
    PUT(VECTOR(r) * PIECES + piece, sum[i] / total[i]);
#endif
  }
}
