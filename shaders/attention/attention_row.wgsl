// softmax(scale * q k^T + mask) v for one row of halves, or with CAPPED of softcap * tanh(scores /
// softcap). With HAS_TILES, for rows of several sequences in pages of PAGE keys, described by
// tiles.
//
// A work-group takes one head and tiles of KEYS keys. LANES work-items take eight neighbouring
// elements each of a key, then of values.
//
// With SPLIT, a work-group takes SPLIT keys and stores sums, their maximum and their total for
// attention_merge. With WINDOW, which excludes SPLIT, a row sees at most WINDOW keys.
const LANES: u32 = DIM / 8u;
const KEYS_AT_ONCE: u32 = WG / LANES;
const KEYS: u32 = KEYS_AT_ONCE * STEPS;
const LOWEST: f32 = -3.4028235e38;
// Partial scores, padded so that rows begin in different banks, and at the end sums of values.
var<workgroup> parts: array<f32, KEYS * (LANES + 1u)>;
var<workgroup> scores: array<f32, KEYS>;
var<workgroup> sums: array<vec4<f32>, WG * 2u>;
var<workgroup> totals: array<f32, KEYS_AT_ONCE>;
#ifdef HAS_TILES
const PAGE: u32 = 64u;
// The number of keys that the row sees, and the start of its pages; 0 if it is in no tile.
var<workgroup> of_row: array<u32, 2>;
#endif

fn four(a: u32, b: u32) -> vec4<f32> { return vec4<f32>(unpack2x16float(a), unpack2x16float(b)); }

@compute @workgroup_size(WG)
fn attention_row(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let lane = lid % LANES;
  let slice = lid / LANES;
  let head = id.x;
  let at = head / (p.heads / p.kv_heads) * LANES + lane;
#ifdef HAS_TILES
  let vector = id.y * p.heads + head;
  if (lid == 0u) { of_row = array<u32, 2>(); }
  workgroupBarrier();
  for (var i = lid; i < p.tile_count; i += WG) {
    let tile_row = u32(tiles_at(4u * i));
    if (id.y >= tile_row && id.y < tile_row + u32(tiles_at(4u * i + 1u))) {
      of_row[0] = u32(tiles_at(4u * i + 3u)) + id.y - tile_row;
      of_row[1] = u32(tiles_at(4u * i + 2u));
    }
  }
  workgroupBarrier();
  let keys = workgroupUniformLoad(&of_row[0]);
  let table = workgroupUniformLoad(&of_row[1]);
#else
  let vector = head;
  let keys = u32(live_at(p.live_keys));
#endif
#ifdef SPLIT
  let begin = min(id.z * SPLIT, keys);
  let end = min(begin + SPLIT, keys);
#else
#ifdef WINDOW
  let begin = max(keys, WINDOW) - WINDOW;
#else
  let begin = 0u;
#endif
  let end = keys;
#endif
  let words = q[vector * LANES + lane];
  let qa = four(words.x, words.y) * p.scale;
  let qb = four(words.z, words.w) * p.scale;
  var a = vec4<f32>();
  var b = vec4<f32>();
  var top = LOWEST / 2.0;
  var total = 0.0;
  for (var first = begin; first < end; first += KEYS) {
    var values: array<vec4<u32>, STEPS>;
    for (var s = 0u; s < STEPS; s++) {
      var place = min(first + s * KEYS_AT_ONCE + slice, end - 1u);
#ifdef HAS_TILES
      place = u32(pages_at(table + place / PAGE)) * PAGE + place % PAGE;
#endif
      let row = place * p.kv_heads * LANES + at;
      let key = k[row];
      values[s] = v[row];
      parts[(s * KEYS_AT_ONCE + slice) * (LANES + 1u) + lane] =
          dot(qa, four(key.x, key.y)) + dot(qb, four(key.z, key.w));
    }
    workgroupBarrier();
    for (var t = lid; t < KEYS; t += WG) {
      var score = 0.0;
      for (var i = 0u; i < LANES; i++) { score += parts[t * (LANES + 1u) + i]; }
#ifdef CAPPED
      score = p.softcap * tanh(clamp(score / p.softcap, -20.0, 20.0));
#endif
#ifdef HAS_MASK
      score += mask_at(head * p.mask_h + min(first + t, end - 1u) * p.mask_t);
#endif
      scores[t] = select(LOWEST, score, first + t < end);
    }
    workgroupBarrier();
    var high = top;
    for (var t = 0u; t < KEYS; t++) { high = max(high, scores[t]); }
    let keep = exp(max(top - high, -200.0));
    top = high;
    total *= keep;
    a *= keep;
    b *= keep;
    for (var s = 0u; s < STEPS; s++) {
      let weight = exp(max(scores[s * KEYS_AT_ONCE + slice] - high, -200.0));
      total += weight;
      a += weight * four(values[s].x, values[s].y);
      b += weight * four(values[s].z, values[s].w);
    }
    workgroupBarrier();
  }
  sums[lid * 2u] = a;
  sums[lid * 2u + 1u] = b;
  if (lane == 0u) { totals[slice] = total; }
  workgroupBarrier();
  if (lid < LANES * 2u) {
    var all = vec4<f32>();
    total = 0.0;
    for (var i = 0u; i < KEYS_AT_ONCE; i++) {
      all += sums[i * LANES * 2u + lid];
      total += totals[i];
    }
#ifdef SPLIT
    let to = (id.z * p.heads + head) * (LANES * 2u + 1u);
    y_put4(to + lid, all);
    if (lid == 0u) { y_put4(to + LANES * 2u, vec4<f32>(top, total, 0.0, 0.0)); }
#else
    y_put4(vector * LANES * 2u + lid, all / total);
#endif
  }
}
