// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight. A work-item computes ROWS rows of one column; a
// group of x is shared by the work-group, and each weight is unpacked once for all rows.
#include "common/e0m4"

KERNEL {
  __local float xs[ROWS * GROUP];
  __local float out[ROWS * WG];
  uint lid = get_local_id(0);
  uint first = get_group_id(0) * WG, i0 = get_group_id(1) * ROWS;
  uint j = min(first + lid, p.n - 1);
  float total[ROWS];
  for (uint r = 0; r < ROWS; r++) total[r] = 0.0f;
  for (uint k0 = 0, g = 0; k0 < p.k; k0 += GROUP, g++) {
    uint len = min((uint)GROUP, p.k - k0);
    for (uint t = lid; t < ROWS * GROUP / 2; t += WG) {
      uint r = t / (GROUP / 2), c = 2 * (t % (GROUP / 2));
      float2 v = (float2)(0.0f);
      if (i0 + r < p.m && c < len) v = x_at2(((i0 + r) * p.k + k0 + c) / 2);
      vstore2(v, t, xs);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float2 s = scales_at2(g * p.stride + j);
    float offset = -s.x * s.y;
    for (uint c = 0; c < len; c += PER) {
      uint word = codes[(k0 + c) / PER * p.stride + j];
      float w[PER];
      #pragma unroll
      for (int q = 0; q < PER / 2; q++) {
        float2 v = e0m_pair(word, q);
        w[2 * q] = v.x * s.x + offset;
        w[2 * q + 1] = v.y * s.x + offset;
      }
      #pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float sum = 0.0f;
        #pragma unroll
        for (int q = 0; q < PER; q++) sum += w[q] * xs[r * GROUP + c + q];
        total[r] += sum;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (uint r = 0; r < ROWS; r++) out[r * WG + lid] = total[r];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint t = lid; t < ROWS * WG / 2; t += WG) {
    uint r = t / (WG / 2), c = 2 * (t % (WG / 2));
    if (i0 + r < p.m && first + c < p.n)
      y_put2(((i0 + r) * p.y_stride + p.column + first + c) / 2, vload2(t, out));
  }
}
