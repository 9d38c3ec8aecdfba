// y[r, c] = x[r, c] / sqrt(mean of squares + epsilon) * scale[c]. A work-group computes a row,
// whose elements stay in registers: VECTORS vectors of four per work-item. Rows consist of whole
// vectors.
#include "common/reduce"

KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0), vectors = p.cols / 4, first = get_group_id(0) * vectors;
  float4 v[VECTORS], squares = (float4)(0.0f);
  _Pragma("unroll") for (uint e = 0; e < VECTORS; e++) {
    uint c = lid + e * WG;
    v[e] = c < vectors ? x_at4(first + c) : (float4)(0.0f);
    squares += v[e] * v[e];
  }
  float inverse = rsqrt(wg_sum(squares.x + squares.y + squares.z + squares.w, scratch) / (float)p.cols + p.epsilon);
  _Pragma("unroll") for (uint e = 0; e < VECTORS; e++) {
    uint c = lid + e * WG;
    if (c < vectors) y_put4(first + c, v[e] * inverse * scale_at4(c));
  }
}
