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
alias VEC = vec4<f32>;
const WIDTH: u32 = 4u;
#else
alias VEC = vec2<f32>;
const WIDTH: u32 = 2u;
#endif
const PIECES: u32 = DIM / WIDTH;
// Piece i of a row of keys or values. With Q8, a row consists of words of four signed bytes,
// followed by the factor of all of them.
#ifdef Q8
fn bytes_to_floats(word: i32) -> VEC {
  let w = bitcast<u32>(word);
  return VEC(bitcast<vec4<i32>>(vec4<u32>(w << 24u, w << 16u, w << 8u, w)) >> vec4<u32>(24u));
}
fn k_piece(row: u32, i: u32) -> VEC { return bytes_to_floats(k_at(row * (PIECES + 1u) + i)); }
fn v_piece(row: u32, i: u32) -> VEC { return bytes_to_floats(v_at(row * (PIECES + 1u) + i)); }
fn k_scale(row: u32) -> f32 { return bitcast<f32>(k_at(row * (PIECES + 1u) + PIECES)); }
fn v_scale(row: u32) -> f32 { return bitcast<f32>(v_at(row * (PIECES + 1u) + PIECES)); }
#else
#ifdef WIDE
fn k_piece(row: u32, i: u32) -> VEC { return k_at4(row * PIECES + i); }
fn v_piece(row: u32, i: u32) -> VEC { return v_at4(row * PIECES + i); }
#else
fn k_piece(row: u32, i: u32) -> VEC { return k_at2(row * PIECES + i); }
fn v_piece(row: u32, i: u32) -> VEC { return v_at2(row * PIECES + i); }
#endif
fn k_scale(row: u32) -> f32 { return 1.0; }
fn v_scale(row: u32) -> f32 { return 1.0; }
#endif
const RESULTS: u32 = VECTORS * PIECES;
#ifdef SHARED
const RESULTS_PER_ITEM: u32 = 1u;
var<workgroup> part_sum: array<VEC, WG>;
var<workgroup> part_total: array<f32, WG>;
fn result_index(lid: u32, i: u32) -> u32 { return lid % RESULTS; }
fn slice_of(lid: u32) -> u32 { return lid / RESULTS; }
#else
const RESULTS_PER_ITEM: u32 = (RESULTS + WG - 1u) / WG;
fn result_index(lid: u32, i: u32) -> u32 { return lid + i * WG; }
fn slice_of(lid: u32) -> u32 { return 0u; }
#endif
const LOWEST: f32 = -3.4028235e38;
// The maximum before the first key. With tiles, which have no masks, it gives keys that a row does
// not see a weight of exactly 0.
#ifdef HAS_TILES
const INITIAL_MAX: f32 = LOWEST / 2.0;
#else
const INITIAL_MAX: f32 = LOWEST;
#endif
var<workgroup> query: array<VEC, RESULTS>;
var<workgroup> weight: array<f32, LANES * VECTORS * KEYS>;
var<workgroup> top: array<f32, VECTORS>;
var<workgroup> keep: array<f32, VECTORS>;

// Number of keys up to the position of a row: `keys` for row `base_row`.
fn keys_up_to(keys: u32, row: u32, base_row: u32) -> u32 { return keys + row - base_row; }

#ifdef WINDOW
// Number of keys before the window of a row.
fn keys_before(keys: u32, row: u32, base_row: u32) -> u32 {
  return max(keys + row, base_row + WINDOW) - (base_row + WINDOW);
}
#endif

#ifdef HAS_TILES
// The position of a key of a page in the cache, in rows of heads.
fn key_row(page: u32, key: u32, kv: u32) -> u32 { return (page + key % KEYS) * p.kv_heads + kv; }
#else
// The position of a key in the cache, in rows of heads, after the keys of the earlier batches.
fn key_row(past: u32, key: u32, kv: u32) -> u32 {
#ifdef RING
  return (key % RING) * p.kv_heads + kv;
#else
  return (past + key) * p.kv_heads + kv;
#endif
}
#endif

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let head0 = group.x * HEADS;
  let kv = head0 / (p.heads / p.kv_heads);
#ifdef HAS_TILES
  let tile_at = group.y / TILE_GROUPS * 4u;
  let tile_row = u32(tiles_at(tile_at));
  let row_end = tile_row + u32(tiles_at(tile_at + 1u));
  let row0 = tile_row + group.y % TILE_GROUPS * (VECTORS / HEADS);
  let table = u32(tiles_at(tile_at + 2u));
  let keys = u32(tiles_at(tile_at + 3u));
  let base_row = tile_row;
#else
  let row_end = p.rows;
  let row0 = group.y * (VECTORS / HEADS);
  let keys = u32(live_at(p.live_keys));
  // The last rows are at the positions of the last keys.
  let base_row = p.rows - 1u;
#endif
  let last_row = max(row_end, 1u) - 1u;
#ifdef WINDOW
  // The window of the first row begins first.
#ifdef HAS_TILES
  let before = keys_before(keys, row0, base_row) / KEYS * KEYS;
#else
  let before = keys_before(keys, row0, base_row);
#endif
#else
  let before = 0u;
#endif
#ifdef SPLIT
  let batch = 0u;
  let begin = min(before + group.z * SPLIT, keys);
  let end = min(begin + SPLIT, keys);
#else
  let batch = group.z;
  let begin = before;
#ifdef CAUSAL
  // The last row of the group sees the most keys.
  let last_row_keys = keys_up_to(keys, min(row0 + (VECTORS - 1u) / HEADS, last_row), base_row);
#ifdef HAS_TILES
  let end = select(0u, last_row_keys, row0 < row_end);
#else
  let end = last_row_keys;
#endif
#else
  let end = keys;
#endif
#endif
#ifndef HAS_TILES
  let past = batch * p.keys;
#endif
  for (var i = lid; i < VECTORS * PIECES; i += WG) {
    let r = i / PIECES;
    let row = min(row0 + r / HEADS, last_row);
    let at = ((batch * p.rows + row) * p.heads + head0 + r % HEADS) * PIECES + i % PIECES;
#ifdef WIDE
    query[i] = q_at4(at) * p.scale;
#else
    query[i] = q_at2(at) * p.scale;
#endif
  }
  for (var r = lid; r < VECTORS; r += WG) { top[r] = INITIAL_MAX; }
  workgroupBarrier();
#ifdef ROLLED
  // These numbers are unknown to compilers, which would otherwise unroll a loop of loads and run
  // out of registers.
  let dot_pieces = p.pieces;
  let tile = p.pieces / PIECES * KEYS;
#else
  let dot_pieces = PIECES;
  let tile = KEYS;
#endif
  var sum: array<VEC, RESULTS_PER_ITEM>;
  var total: array<f32, RESULTS_PER_ITEM>;
  for (var first = begin; first < end; first += KEYS) {
#ifdef HAS_TILES
    let past = u32(pages_at(table + first / KEYS)) * KEYS;
#endif
    for (var at = lid; at < KEYS * LANES; at += WG) {
      let t = at / LANES;
      let lane = at % LANES;
      let row = key_row(past, min(first + t, end - 1u), kv);
      var dots: array<VEC, VECTORS>;
      for (var i = lane; i < dot_pieces; i += LANES) {
        let x = k_piece(row, i);
        for (var r = 0u; r < VECTORS; r++) { dots[r] += x * query[r * PIECES + i]; }
      }
      for (var r = 0u; r < VECTORS; r++) { weight[(lane * VECTORS + r) * KEYS + t] = dot(dots[r], VEC(1.0)); }
    }
    workgroupBarrier();
    for (var i = lid; i < VECTORS * KEYS; i += WG) {
      let t = i % KEYS;
      let key = min(first + t, end - 1u);
      var score = weight[i];
      for (var lane = 1u; lane < LANES; lane++) { score += weight[lane * (VECTORS * KEYS) + i]; }
      score *= k_scale(key_row(past, key, kv));
#ifdef CAPPED
      score = p.softcap * tanh(clamp(score / p.softcap, -20.0, 20.0));
#endif
      let r = i / KEYS;
      let row = min(row0 + r / HEADS, last_row);
#ifdef HAS_MASK
      score += mask_at(batch * p.mask_b + (head0 + r % HEADS) * p.mask_h + row * p.mask_s + key * p.mask_t);
#endif
#ifdef WINDOW
      if (key < keys_before(keys, row, base_row)) { score = LOWEST; }
#endif
#ifdef CAUSAL
      if (key >= keys_up_to(keys, row, base_row)) { score = LOWEST; }
#endif
      weight[i] = select(LOWEST, score, first + t < end);
    }
    workgroupBarrier();
    for (var r = lid; r < VECTORS; r += WG) {
      var next = top[r];
      for (var t = 0u; t < KEYS; t++) { next = max(next, weight[r * KEYS + t]); }
      keep[r] = exp(max(top[r] - next, -80.0));
      top[r] = next;
    }
    workgroupBarrier();
    for (var r = 0u; r < VECTORS; r++) {
      for (var t = lid; t < KEYS; t += WG) {
        let d = weight[r * KEYS + t] - top[r];
        weight[r * KEYS + t] = select(0.0, exp(d), d > -80.0);
      }
    }
    workgroupBarrier();
    let count = min(tile, end - first);
    for (var i = 0u; i < RESULTS_PER_ITEM; i++) {
      let r = min(result_index(lid, i) / PIECES, VECTORS - 1u);
      let piece = result_index(lid, i) % PIECES;
      // Selected by comparisons: an index unknown to the compiler would keep the sums in memory.
      var s = sum[0];
      var l = total[0];
      for (var q = 1u; q < RESULTS_PER_ITEM; q++) {
        s = select(s, sum[q], q == i);
        l = select(l, total[q], q == i);
      }
      s *= keep[r];
      l *= keep[r];
      for (var t = slice_of(lid); t < count; t += SLICES) {
        let w = weight[r * KEYS + t];
        let row = key_row(past, first + t, kv);
        s += w * v_scale(row) * v_piece(row, piece);
        l += w;
      }
      for (var q = 0u; q < RESULTS_PER_ITEM; q++) {
        sum[q] = select(sum[q], s, q == i);
        total[q] = select(total[q], l, q == i);
      }
    }
    workgroupBarrier();
  }
#ifdef SHARED
  part_sum[lid] = sum[0];
  part_total[lid] = total[0];
  workgroupBarrier();
  if (slice_of(lid) > 0u) { return; }
  for (var i = lid + RESULTS; i < SLICES * RESULTS; i += RESULTS) {
    sum[0] += part_sum[i];
    total[0] += part_total[i];
  }
#endif
  for (var i = 0u; i < RESULTS_PER_ITEM; i++) {
    let r = result_index(lid, i) / PIECES;
    let piece = result_index(lid, i) % PIECES;
    let row = row0 + r / HEADS;
    if (r < VECTORS && row < row_end) {
      let vector = (batch * p.rows + row) * p.heads + head0 + r % HEADS;
#ifdef SPLIT
      let at = (group.z * p.rows * p.heads + vector) * (PIECES + 1u);
#ifdef WIDE
      y_put4(at + piece, sum[i]);
      if (piece == 0u) { y_put4(at + PIECES, vec4<f32>(top[r], total[i], 0.0, 0.0)); }
#else
      y_put2(at + piece, sum[i]);
      if (piece == 0u) { y_put2(at + PIECES, vec2<f32>(top[r], total[i])); }
#endif
#else
#ifdef WIDE
      y_put4(vector * PIECES + piece, sum[i] / total[i]);
#else
      y_put2(vector * PIECES + piece, sum[i] / total[i]);
#endif
#endif
    }
  }
}
