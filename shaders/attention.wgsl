// softmax(scale * q k^T + mask) v for ROWS query rows of one head of a batch a work-group, over tiles of KEYS keys with a running maximum, so
// that no row of scores leaves the work-group. Work-items first own keys, then parts (2 or 4 elements) of result rows.
#ifdef WIDE
alias VEC = vec4<f32>;
const V: u32 = 4u;
#else
alias VEC = vec2<f32>;
const V: u32 = 2u;
#endif
const PARTS: u32 = DIM / V;
const OWNED: u32 = (ROWS * PARTS + WG - 1u) / WG;
var<workgroup> query: array<VEC, ROWS * PARTS>;
var<workgroup> weight: array<f32, ROWS * KEYS>;

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let head = group.x;
  let row0 = group.y * ROWS;
  let keys = u32(live_at(p.live_keys));
  let kv = head / (p.heads / p.kv_heads);
  let batch = group.z;
  let queries = batch * p.rows;
  let past = batch * p.keys;
  for (var i = lid; i < ROWS * PARTS; i += WG) {
    let row = min(row0 + i / PARTS, p.rows - 1u);
    let at = ((queries + row) * p.heads + head) * PARTS + i % PARTS;
#ifdef WIDE
    query[i] = q_at4(at) * p.scale;
#else
    query[i] = q_at2(at) * p.scale;
#endif
  }
  workgroupBarrier();
  var top: array<f32, ROWS>;
  for (var r = 0u; r < ROWS; r++) { top[r] = -3.4028235e38; }
  var sum: array<VEC, OWNED>;
  var total: array<f32, OWNED>;
  for (var first = 0u; first < keys; first += KEYS) {
    for (var t = lid; t < KEYS; t += WG) {
      let key = min(first + t, keys - 1u);
      let base = ((past + key) * p.kv_heads + kv) * PARTS;
      var dots: array<VEC, ROWS>;
      for (var i = 0u; i < PARTS; i++) {
#ifdef WIDE
        let x = k_at4(base + i);
#else
        let x = k_at2(base + i);
#endif
        for (var r = 0u; r < ROWS; r++) { dots[r] += x * query[r * PARTS + i]; }
      }
      for (var r = 0u; r < ROWS; r++) {
        var score = dot(dots[r], VEC(1.0));
#ifdef HAS_MASK
        score += mask_at(batch * p.mask_b + head * p.mask_h + min(row0 + r, p.rows - 1u) * p.mask_s + key * p.mask_t);
#endif
        weight[r * KEYS + t] = select(-3.4028235e38, score, first + t < keys);
      }
    }
    workgroupBarrier();
    var keep: array<f32, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
      var next = top[r];
      for (var t = 0u; t < KEYS; t++) { next = max(next, weight[r * KEYS + t]); }
      keep[r] = exp(max(top[r] - next, -80.0));
      top[r] = next;
    }
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) {
      for (var t = lid; t < KEYS; t += WG) {
        let d = weight[r * KEYS + t] - top[r];
        weight[r * KEYS + t] = select(0.0, exp(d), d > -80.0);
      }
    }
    workgroupBarrier();
    let count = min(KEYS, keys - first);
    for (var i = 0u; i < OWNED; i++) {
      let r = min((lid + i * WG) / PARTS, ROWS - 1u);
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
    if (r < ROWS && row0 + r < p.rows) {
#ifdef WIDE
      y_put4(((queries + row0 + r) * p.heads + head) * PARTS + part, sum[i] / total[i]);
#else
      y_put2(((queries + row0 + r) * p.heads + head) * PARTS + part, sum[i] / total[i]);
#endif
    }
  }
}
