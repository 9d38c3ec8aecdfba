// y[column + j] = sum_k x[k] * w[k, j] for one row x and an E0M weight. A work-group takes LANES columns; WG / LANES
// work-items share a column, each taking every so many groups of weights.
//
// With w = s * (w1 - b): sum x * w = s * (sum x * w1 - b * sum x), so the bias costs nothing a weight.
#include "common/e0m4"
#define SLICES (WG / LANES)

KERNEL {
  __local float part[WG];
  uint lid = get_local_id(0), lane = lid % LANES;
  uint first = get_group_id(0) * LANES;
  uint j = min(first + lane, p.n - 1);
  float total = 0.0f;
  uint groups = (p.words + GROUP / PER - 1) / (GROUP / PER);
  for (uint g = lid / LANES; g < groups; g += SLICES) {
    float dot_w = 0.0f, sum = 0.0f;
    uint end = min((g + 1) * (GROUP / PER), p.words);
    for (uint r = g * (GROUP / PER); r < end; r++) {
      uint word = codes[r * p.stride + j];
#ifdef PER4
      float4 a = x_at4(r);
      sum += a.x + a.y + a.z + a.w;
      float2 w0 = e0m_pair(word, 0), w1 = e0m_pair(word, 1);
      dot_w += a.x * w0.x + a.y * w0.y + a.z * w1.x + a.w * w1.y;
#else
      float4 a = x_at4(2 * r), b = x_at4(2 * r + 1);
      sum += a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
      float2 w0 = e0m_pair(word, 0), w1 = e0m_pair(word, 1), w2 = e0m_pair(word, 2), w3 = e0m_pair(word, 3);
      dot_w += a.x * w0.x + a.y * w0.y + a.z * w1.x + a.w * w1.y;
      dot_w += b.x * w2.x + b.y * w2.y + b.z * w3.x + b.w * w3.y;
#endif
    }
    float2 s = scales_at2(g * p.stride + j);
    total += s.x * (dot_w - s.y * sum);
  }
  part[lid] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  uint at = first + 2 * lid;
  if (2 * lid < LANES && at < p.n) {
    float2 v = (float2)(0.0f);
    for (uint i = 0; i < SLICES; i++) v += (float2)(part[i * LANES + 2 * lid], part[i * LANES + 2 * lid + 1]);
    y_put2((p.column + at) / 2, v);
  }
}
