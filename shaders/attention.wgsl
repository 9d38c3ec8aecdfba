// One query row of one head a work-group: softmax(scale * q k^T + mask) v over tiles of WG keys, with a running maximum and sum,
// so that no row of scores is stored. Work-items first own keys, then pairs of result elements.
#include "common/reduce"
const PAIRS: u32 = (DIM / 2u + WG - 1u) / WG;
var<workgroup> weight: array<f32, WG>;
var<workgroup> query: array<vec2<f32>, DIM / 2u>;

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let head = group.x;
  let row = group.y;
  let kv = head / (p.heads / p.kv_heads);
  let at = (row * p.heads + head) * DIM;
  for (var i = lid; i < DIM / 2u; i += WG) { query[i] = q_at2(at / 2u + i) * p.scale; }
  workgroupBarrier();
  var top = -3.0e38;
  var total = 0.0;
  var sum: array<vec2<f32>, PAIRS>;
  for (var first = 0u; first < p.keys; first += WG) {
    let key = first + lid;
    var score = -3.0e38;
    if (key < p.keys) {
      let base = (key * p.kv_heads + kv) * (DIM / 2u);
      score = 0.0;
      for (var i = 0u; i < DIM / 2u; i++) { score += dot(k_at2(base + i), query[i]); }
#ifdef HAS_MASK
      score += mask_at(row * p.keys + key);
#endif
    }
    let next = max(top, wg_max(score, lid));
    let e = select(0.0, exp(min(score - next, 0.0)), key < p.keys);
    weight[lid] = e;
    let keep = exp(top - next);
    // The reduction's barriers also publish `weight`.
    total = total * keep + wg_sum(e, lid);
    top = next;
    let count = min(WG, p.keys - first);
    for (var i = 0u; i < PAIRS; i++) {
      let pair = lid + i * WG;
      if (pair < DIM / 2u) {
        var s = sum[i] * keep;
        for (var j = 0u; j < count; j++) { s += weight[j] * v_at2(((first + j) * p.kv_heads + kv) * (DIM / 2u) + pair); }
        sum[i] = s;
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < PAIRS; i++) {
    let pair = lid + i * WG;
    if (pair < DIM / 2u) { y_put2(at / 2u + pair, sum[i] / total); }
  }
}
