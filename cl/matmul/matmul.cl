// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results. A work-item
// computes ROWS rows by two neighbouring columns; with ODD (an odd n), two neighbouring results in
// memory, in any columns. With ROUNDS, it continues with the batch that is the grid's length
// further on, until there is none. If b is in panels of b_stride columns, the panels follow one
// another.
#ifdef TRANS_B
#define B(b0, kk, j) b_at((b0) + (j) * p.b_stride + (kk))
#else
#define B(b0, kk, j) b_at((b0) + (kk) * p.b_stride + (j))
#endif
#include "common/batches"

KERNEL {
#ifdef ODD
  uint pair = get_global_id(0), total = p.batches * p.m * p.n;
  if (2 * pair >= total) return;
  float2 sum = (float2)(0.0f);
  for (uint h = 0; h < 2; h++) {
    uint at = min(2 * pair + h, total - 1);
    uint z = at / (p.m * p.n), i = at / p.n % p.m, j = at % p.n;
    uint a0 = a_start(z, p) + i * p.k, b0 = b_start(z, p);
    float one = 0.0f;
    for (uint k = 0; k < p.k; k++) one += a_at(a0 + k) * B(b0, k, j);
    sum = h == 0 ? (float2)(one, 0.0f) : (float2)(sum.x, one);
  }
  y_put2(pair, sum);
#else
  uint j = 2 * get_global_id(0), i0 = get_group_id(1) * ROWS;
  if (j >= p.n) return;
#ifdef ROUNDS
  for (uint z = get_group_id(2); z < p.batches; z += get_num_groups(2))
#else
  uint z = get_group_id(2);
#endif
  {
    uint a0 = a_start(z, p), b0 = b_start(z, p);
    float2 sum[ROWS];
    uint row[ROWS];
    for (uint r = 0; r < ROWS; r++) row[r] = a0 + min(i0 + r, p.m - 1) * p.k;
    for (uint r = 0; r < ROWS; r++) sum[r] = (float2)(0.0f);
#ifndef TRANS_B
    uint at = b0 + j / p.b_stride * p.b_stride * p.k + j % p.b_stride;
#endif
#ifdef BY4
    // Four terms of the sum at a time, so that their loads do not wait for each other.
    for (uint k = 0; k < p.k; k += 4) {
#ifdef TRANS_B
      float4 b0k = b_at4((b0 + j * p.b_stride + k) / 4), b1k = b_at4((b0 + (j + 1) * p.b_stride + k) / 4);
      float2 w0 = (float2)(b0k.x, b1k.x), w1 = (float2)(b0k.y, b1k.y), w2 = (float2)(b0k.z, b1k.z),
          w3 = (float2)(b0k.w, b1k.w);
#else
      float2 w0 = b_at2((at + k * p.b_stride) / 2), w1 = b_at2((at + (k + 1) * p.b_stride) / 2);
      float2 w2 = b_at2((at + (k + 2) * p.b_stride) / 2), w3 = b_at2((at + (k + 3) * p.b_stride) / 2);
#endif
      for (uint r = 0; r < ROWS; r++) {
        float4 x = a_at4((row[r] + k) / 4);
        sum[r] += x.x * w0 + x.y * w1 + x.z * w2 + x.w * w3;
      }
    }
#else
    for (uint k = 0; k < p.k; k++) {
#ifdef TRANS_B
      float2 w = (float2)(B(b0, k, j), B(b0, k, j + 1));
#else
      float2 w = b_at2((at + k * p.b_stride) / 2);
#endif
      for (uint r = 0; r < ROWS; r++) sum[r] += a_at(row[r] + k) * w;
    }
#endif
    for (uint r = 0; r < ROWS; r++)
      if (i0 + r < p.m) y_put2(((z * p.m + i0 + r) * p.y_stride + p.column + j) / 2, sum[r]);
  }
#endif
}
