enable f16;
enable wgpu_cooperative_matrix;
// softmax(scale * q k^T + mask) v for many rows of halves with cooperative matrices of 16 x 16, or
// with CAPPED of softcap * tanh(scores / softcap).
//
// A warp takes 16 rows of queries of one head. The warps of a work-group share tiles of KEYS keys
// and values in work-group memory. The first pass over the keys finds the largest score of each
// row, the second one sums values. So no sum is ever rescaled, which matrices cannot do row by row.
//
// With CAUSAL, a row sees keys up to its own position. Tiles that no row of the work-group sees are
// not read. With HAS_TILES (paged_attention.rs), which requires CAUSAL, a work-group takes a tile:
// rows of one sequence. KEYS divides the 64 keys of a page.
const ROWS: u32 = WG / 2u;
const LOWEST: f32 = -3.4028235e38;
// Length of a row in vectors of four halves, padded so that rows begin in different banks.
const QUADS: u32 = DIM / 4u;
const ROW: u32 = QUADS + 2u;
const P_ROW: u32 = KEYS / 4u + 2u;
// First queries, then keys, then values: KEYS is at most ROWS.
var<workgroup> tile: array<vec4<f16>, ROWS * ROW>;
var<workgroup> scores: array<f32, ROWS * KEYS>;
var<workgroup> powers: array<vec4<f16>, ROWS * P_ROW>;

// Eight neighbouring elements of a row of sums, divided by the total of the row.
fn put_eight(to: u32, at: u32, total: f32) {
  y_put4(to, vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]) / total);
  y_put4(to + 1u, vec4<f32>(scores[at + 4u], scores[at + 5u], scores[at + 6u], scores[at + 7u]) / total);
}

alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sum = coop_mat16x16<f32, C>;

// Rows end before `row_end`, and the last of them sees `keys` keys. The pages begin at `table`.
struct Place { batch: u32, head: u32, kv: u32, past: u32, keys: u32, row_end: u32, table: u32 }

// Number of keys that a row sees. The last rows are at the positions of the last keys.
fn seen(at: Place, row: u32) -> u32 {
#ifdef CAUSAL
  return at.keys + row + 1u - at.row_end;
#else
  return at.keys;
#endif
}

// The position in the cache, in rows, of a key of the tile of keys that starts at `first`.
fn place(at: Place, first: u32, key: u32) -> u32 {
#ifdef HAS_TILES
  return u32(pages_at(at.table + first / 64u)) * 64u + key % 64u;
#else
  return at.past + key;
#endif
}

fn bring_keys(at: Place, first: u32, lid: u32) {
  workgroupBarrier();
  for (var e = lid; e < KEYS * QUADS; e += WG) {
    let row = place(at, first, min(first + e / QUADS, at.keys - 1u));
    tile[e / QUADS * ROW + e % QUADS] = k[(row * p.kv_heads + at.kv) * QUADS + e % QUADS];
  }
  workgroupBarrier();
}

fn bring_values(at: Place, first: u32, lid: u32) {
  workgroupBarrier();
  for (var e = lid; e < KEYS * QUADS; e += WG) {
    let row = place(at, first, min(first + e / QUADS, at.keys - 1u));
    tile[e / QUADS * ROW + e % QUADS] = v[(row * p.kv_heads + at.kv) * QUADS + e % QUADS];
  }
  workgroupBarrier();
}

// The score of a key of the tile, as input of the softmax, for row `own` of the work-group.
fn score(at: Place, own: u32, row: u32, first: u32, key: u32) -> f32 {
  if (first + key >= seen(at, row)) { return LOWEST; }
  var s = scores[own * KEYS + key] * p.scale;
#ifdef CAPPED
  s = p.softcap * tanh(clamp(s / p.softcap, -20.0, 20.0));
#endif
#ifdef HAS_MASK
  s += mask_at(at.batch * p.mask_b + at.head * p.mask_h + row * p.mask_s + (first + key) * p.mask_t);
#endif
  return s;
}

@compute @workgroup_size(WG)
fn attention_mma(
  @builtin(workgroup_id) group: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) lid: u32,
) {
  let head = group.x;
  let kv = head / (p.heads / p.kv_heads);
  // Later rows come first, since they see more keys if attention is causal.
  let part_of_rows = groups.y - 1u - group.y;
#ifdef HAS_TILES
  let tile_at = part_of_rows * 4u;
  let row0 = u32(tiles_at(tile_at));
  let count = u32(tiles_at(tile_at + 1u));
  let at = Place(group.z, head, kv, 0u, u32(tiles_at(tile_at + 3u)) + count - 1u, row0 + count,
      u32(tiles_at(tile_at + 2u)));
#else
  let row0 = part_of_rows * ROWS;
  let at = Place(group.z, head, kv, group.z * p.keys, u32(live_at(p.live_keys)), p.rows, 0u);
#endif
  let last_row = max(at.row_end, 1u) - 1u;
  let end = select(0u, seen(at, min(row0 + ROWS - 1u, last_row)), row0 < at.row_end);
  let warp = lid / 32u;
  // Two work-items process a row, each half of its keys.
  let own = lid / 2u;
  let part = lid % 2u * (KEYS / 2u);
  let row = min(row0 + own, last_row);
  for (var e = lid; e < ROWS * QUADS; e += WG) {
    let source = (at.batch * p.rows + min(row0 + e / QUADS, last_row)) * p.heads + head;
    tile[e / QUADS * ROW + e % QUADS] = q[source * QUADS + e % QUADS];
  }
  workgroupBarrier();
  let mine = warp * 16u * ROW;
  let q0 = coopLoadT<Left>(&tile[mine + 0u], ROW);
  let q1 = coopLoadT<Left>(&tile[mine + 4u], ROW);
  let q2 = coopLoadT<Left>(&tile[mine + 8u], ROW);
  let q3 = coopLoadT<Left>(&tile[mine + 12u], ROW);
#ifdef DIM_FROM_128
  let q4 = coopLoadT<Left>(&tile[mine + 16u], ROW);
  let q5 = coopLoadT<Left>(&tile[mine + 20u], ROW);
  let q6 = coopLoadT<Left>(&tile[mine + 24u], ROW);
  let q7 = coopLoadT<Left>(&tile[mine + 28u], ROW);
#endif
#ifdef DIM_FROM_256
  let q8 = coopLoadT<Left>(&tile[mine + 32u], ROW);
  let q9 = coopLoadT<Left>(&tile[mine + 36u], ROW);
  let q10 = coopLoadT<Left>(&tile[mine + 40u], ROW);
  let q11 = coopLoadT<Left>(&tile[mine + 44u], ROW);
  let q12 = coopLoadT<Left>(&tile[mine + 48u], ROW);
  let q13 = coopLoadT<Left>(&tile[mine + 52u], ROW);
  let q14 = coopLoadT<Left>(&tile[mine + 56u], ROW);
  let q15 = coopLoadT<Left>(&tile[mine + 60u], ROW);
#endif
  var s0: Sum;
  var s1: Sum;
  var s2: Sum;
  var s3: Sum;
#ifdef DIM_FROM_128
  var s4: Sum;
  var s5: Sum;
  var s6: Sum;
  var s7: Sum;
#endif
#ifdef DIM_FROM_256
  var s8: Sum;
  var s9: Sum;
  var s10: Sum;
  var s11: Sum;
  var s12: Sum;
  var s13: Sum;
  var s14: Sum;
  var s15: Sum;
#endif
  var top = LOWEST;
  var total = 0.0;
  for (var first = 0u; first < end; first += KEYS) {
#include "common/attention_scores"
    workgroupBarrier();
    for (var t = 0u; t < KEYS / 2u; t++) { top = max(top, score(at, own, row, first, part + t)); }
  }
  // The maximum of the other work-item of the row.
  workgroupBarrier();
  scores[lid] = top;
  workgroupBarrier();
  top = max(top, scores[lid ^ 1u]);
  for (var first = 0u; first < end; first += KEYS) {
#include "common/attention_scores"
    workgroupBarrier();
    for (var t = 0u; t < KEYS / 8u; t++) {
      var e = vec4<f32>();
      for (var c = 0u; c < 4u; c++) { e[c] = exp(max(score(at, own, row, first, part + 4u * t + c) - top, -200.0)); }
      total += dot(e, vec4<f32>(1.0));
      powers[own * P_ROW + part / 4u + t] = vec4<f16>(e);
    }
    bring_values(at, first, lid);
    for (var j = 0u; j < KEYS; j += 16u) {
      let a = coopLoadT<Left>(&powers[warp * 16u * P_ROW + j / 4u], P_ROW);
      s0 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 0u], ROW), s0);
      s1 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 4u], ROW), s1);
      s2 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 8u], ROW), s2);
      s3 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 12u], ROW), s3);
#ifdef DIM_FROM_128
      s4 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 16u], ROW), s4);
      s5 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 20u], ROW), s5);
      s6 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 24u], ROW), s6);
      s7 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 28u], ROW), s7);
#endif
#ifdef DIM_FROM_256
      s8 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 32u], ROW), s8);
      s9 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 36u], ROW), s9);
      s10 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 40u], ROW), s10);
      s11 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 44u], ROW), s11);
      s12 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 48u], ROW), s12);
      s13 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 52u], ROW), s13);
      s14 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 56u], ROW), s14);
      s15 = coopMultiplyAdd(a, coopLoadT<Right>(&tile[j * ROW + 60u], ROW), s15);
#endif
    }
  }
  workgroupBarrier();
  scores[lid] = total;
  workgroupBarrier();
  total += scores[lid ^ 1u];
  let result = ((at.batch * p.rows + row) * p.heads + head) * QUADS;
  workgroupBarrier();
  coopStoreT(s0, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 0u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s1, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 4u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s2, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 8u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s3, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 12u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
#ifdef DIM_FROM_128
  workgroupBarrier();
  coopStoreT(s4, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 16u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s5, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 20u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s6, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 24u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s7, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 28u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
#endif
#ifdef DIM_FROM_256
  workgroupBarrier();
  coopStoreT(s8, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 32u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s9, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 36u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s10, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 40u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s11, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 44u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s12, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 48u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s13, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 52u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s14, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 56u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
  workgroupBarrier();
  coopStoreT(s15, &scores[warp * 256u], 16u);
  workgroupBarrier();
  if (row0 + own < at.row_end) { put_eight(result + 60u + lid % 2u * 2u, own * 16u + lid % 2u * 8u, total); }
#endif
}
