// softmax(scale * q k^T + mask) v, with CAPPED of softcap * tanh(scores / softcap), over tiles of KEYS keys with a running maximum, so that no row of scores leaves the work-group, which takes
// VECTORS query vectors that share keys: HEADS heads of one group for each of VECTORS / HEADS rows. Work-items first own keys, then parts
// (2 or 4 elements) of result rows. With SPLIT a work-group takes so many keys only and stores sums, their maximum and their total, for
// attention_merge.
#ifdef WIDE
alias VEC = vec4<f32>;
const V: u32 = 4u;
#else
alias VEC = vec2<f32>;
const V: u32 = 2u;
#endif
const PARTS: u32 = DIM / V;
const OWNED: u32 = (VECTORS * PARTS + WG - 1u) / WG;
const LOWEST: f32 = -3.4028235e38;
var<workgroup> query: array<VEC, VECTORS * PARTS>;
var<workgroup> weight: array<f32, VECTORS * KEYS>;
var<workgroup> top: array<f32, VECTORS>;
var<workgroup> keep: array<f32, VECTORS>;

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let head0 = group.x * HEADS;
  let row0 = group.y * (VECTORS / HEADS);
  let keys = u32(live_at(p.live_keys));
  let kv = head0 / (p.heads / p.kv_heads);
#ifdef SPLIT
  let batch = 0u;
  let begin = min(group.z * SPLIT, keys);
  let end = min(begin + SPLIT, keys);
#else
  let batch = group.z;
  let begin = 0u;
  let end = keys;
#endif
  let past = batch * p.keys;
  for (var i = lid; i < VECTORS * PARTS; i += WG) {
    let r = i / PARTS;
    let row = min(row0 + r / HEADS, p.rows - 1u);
    let at = ((batch * p.rows + row) * p.heads + head0 + r % HEADS) * PARTS + i % PARTS;
#ifdef WIDE
    query[i] = q_at4(at) * p.scale;
#else
    query[i] = q_at2(at) * p.scale;
#endif
  }
  for (var r = lid; r < VECTORS; r += WG) { top[r] = LOWEST; }
  workgroupBarrier();
  var sum: array<VEC, OWNED>;
  var total: array<f32, OWNED>;
  for (var first = begin; first < end; first += KEYS) {
    for (var t = lid; t < KEYS; t += WG) {
      let key = min(first + t, end - 1u);
      let base = ((past + key) * p.kv_heads + kv) * PARTS;
      var dots: array<VEC, VECTORS>;
      for (var i = 0u; i < PARTS; i++) {
#ifdef WIDE
        let x = k_at4(base + i);
#else
        let x = k_at2(base + i);
#endif
        for (var r = 0u; r < VECTORS; r++) { dots[r] += x * query[r * PARTS + i]; }
      }
      for (var r = 0u; r < VECTORS; r++) {
        var score = dot(dots[r], VEC(1.0));
#ifdef CAPPED
        score = p.softcap * tanh(clamp(score / p.softcap, -20.0, 20.0));
#endif
#ifdef HAS_MASK
        let row = min(row0 + r / HEADS, p.rows - 1u);
        score += mask_at(batch * p.mask_b + (head0 + r % HEADS) * p.mask_h + row * p.mask_s + key * p.mask_t);
#endif
        weight[r * KEYS + t] = select(LOWEST, score, first + t < end);
      }
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
    let count = min(KEYS, end - first);
    for (var i = 0u; i < OWNED; i++) {
      let r = min((lid + i * WG) / PARTS, VECTORS - 1u);
      let part = (lid + i * WG) % PARTS;
      var s = sum[i] * keep[r];
      var l = total[i] * keep[r];
      for (var t = 0u; t < count; t++) {
        let w = weight[r * KEYS + t];
#ifdef WIDE
        s += w * v_at4(((past + first + t) * p.kv_heads + kv) * PARTS + part);
#else
        s += w * v_at2(((past + first + t) * p.kv_heads + kv) * PARTS + part);
#endif
        l += w;
      }
      sum[i] = s;
      total[i] = l;
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < OWNED; i++) {
    let r = (lid + i * WG) / PARTS;
    let part = (lid + i * WG) % PARTS;
    let row = row0 + r / HEADS;
    if (r < VECTORS && row < p.rows) {
      let vector = (batch * p.rows + row) * p.heads + head0 + r % HEADS;
#ifdef SPLIT
      let at = (group.z * p.rows * p.heads + vector) * (PARTS + 1u);
#ifdef WIDE
      y_put4(at + part, sum[i]);
      if (part == 0u) { y_put4(at + PARTS, vec4<f32>(top[r], total[i], 0.0, 0.0)); }
#else
      y_put2(at + part, sum[i]);
      if (part == 0u) { y_put2(at + PARTS, vec2<f32>(top[r], total[i])); }
#endif
#else
#ifdef WIDE
      y_put4(vector * PARTS + part, sum[i] / total[i]);
#else
      y_put2(vector * PARTS + part, sum[i] / total[i]);
#endif
#endif
    }
  }
}
