// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results. A work-item computes ROWS rows by
// two neighbouring columns; with ODD (an odd n), two neighbouring results in memory, wherever they lie; with VECTORS, for CPUs, ROWS
// rows by 16 columns.
#ifdef TRANS_B
#define B(b0, kk, j) b_at((b0) + (j) * p.b_stride + (kk))
#else
#define B(b0, kk, j) b_at((b0) + (kk) * p.b_stride + (j))
#endif
#define A0(z) ((z) % p.n1 * p.a0 + (z) / p.n1 % p.n2 * p.a1 + (z) / p.n1 / p.n2 * p.a2)
#define B0(z) ((z) % p.n1 * p.b0 + (z) / p.n1 % p.n2 * p.b1 + (z) / p.n1 / p.n2 * p.b2)

KERNEL {
#ifdef ODD
  uint pair = get_global_id(0), total = p.batches * p.m * p.n;
  if (2 * pair >= total) return;
  float sum[2];
  for (uint h = 0; h < 2; h++) {
    uint at = min(2 * pair + h, total - 1);
    uint z = at / (p.m * p.n), i = at / p.n % p.m, j = at % p.n;
    uint a0 = A0(z) + i * p.k, b0 = B0(z);
    sum[h] = 0.0f;
    for (uint k = 0; k < p.k; k++) sum[h] += a_at(a0 + k) * B(b0, k, j);
  }
  y_put2(pair, (float2)(sum[0], sum[1]));
#else
#ifdef VECTORS
  uint z = get_group_id(2), a0 = A0(z), b0 = B0(z);
  uint j = 16 * get_global_id(0), i0 = get_group_id(1) * ROWS;
  if (j >= p.n) return;
  float16 sum[ROWS];
  uint row[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    sum[r] = (float16)(0.0f);
    row[r] = a0 + min(i0 + r, p.m - 1) * p.k;
  }
  for (uint k = 0; k < p.k; k++) {
    float16 w = b_run(16, b0 + k * p.b_stride + j);
    for (uint r = 0; r < ROWS; r++) sum[r] += a_at(row[r] + k) * w;
  }
  for (uint r = 0; r < ROWS; r++)
    if (i0 + r < p.m) y_put_run(16, (z * p.m + i0 + r) * p.y_stride + p.column + j, sum[r]);
#else
  uint z = get_group_id(2), a0 = A0(z), b0 = B0(z);
  uint j = 2 * get_global_id(0), i0 = get_group_id(1) * ROWS;
  if (j >= p.n) return;
  float2 sum[ROWS];
  uint row[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    sum[r] = (float2)(0.0f);
    row[r] = a0 + min(i0 + r, p.m - 1) * p.k;
  }
  for (uint k = 0; k < p.k; k++) {
#ifdef TRANS_B
    float2 w = (float2)(B(b0, k, j), B(b0, k, j + 1));
#else
    float2 w = b_at2((b0 + k * p.b_stride + j) / 2);
#endif
    for (uint r = 0; r < ROWS; r++) sum[r] += a_at(row[r] + k) * w;
  }
  for (uint r = 0; r < ROWS; r++)
    if (i0 + r < p.m) y_put2(((z * p.m + i0 + r) * p.y_stride + p.column + j) / 2, sum[r]);
#endif
#endif
}
