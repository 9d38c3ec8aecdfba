// One query row of one head a work-group: softmax(scale * q k^T + mask) v over tiles of WG keys, with a running maximum and sum,
// so that no row of scores is stored. Work-items first own keys, then pairs of result elements.
#include "common/reduce"
#define PAIRS ((DIM / 2 + WG - 1) / WG)

KERNEL {
  __local float scratch[WG + WG / 8];
  __local float weight[WG];
  __local float query[DIM];
  uint lid = get_local_id(0), head = get_group_id(0), row = get_group_id(1);
  uint kv = head / (p.heads / p.kv_heads), at = (row * p.heads + head) * DIM;
  for (uint i = lid; i < DIM; i += WG) query[i] = q_at(at + i) * p.scale;
  barrier(CLK_LOCAL_MEM_FENCE);
  float top = -3.0e38f, total = 0.0f;
  float2 sum[PAIRS];
  for (uint i = 0; i < PAIRS; i++) sum[i] = (float2)(0.0f);
  for (uint first = 0; first < p.keys; first += WG) {
    uint key = first + lid;
    float score = -3.0e38f;
    if (key < p.keys) {
      uint from = (key * p.kv_heads + kv) * (DIM / 2);
      score = 0.0f;
      for (uint i = 0; i < DIM / 2; i++) {
        float2 x = k_at2(from + i);
        score += x.x * query[2 * i] + x.y * query[2 * i + 1];
      }
#ifdef HAS_MASK
      score += mask_at(row * p.keys + key);
#endif
    }
    float next = fmax(top, wg_max(score, scratch));
    float e = key < p.keys ? exp(score - next) : 0.0f;
    weight[lid] = e;
    float keep = exp(top - next);
    // The reduction's barriers also publish `weight`.
    total = total * keep + wg_sum(e, scratch);
    top = next;
    uint count = min((uint)WG, p.keys - first);
    for (uint i = 0; i < PAIRS; i++) {
      uint pair = lid + i * WG;
      if (pair < DIM / 2) {
        float2 s = sum[i] * keep;
        for (uint j = 0; j < count; j++) s += weight[j] * v_at2(((first + j) * p.kv_heads + kv) * (DIM / 2) + pair);
        sum[i] = s;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint i = 0; i < PAIRS; i++) {
    uint pair = lid + i * WG;
    if (pair < DIM / 2) y_put2(at / 2 + pair, sum[i] / total);
  }
}
