// y[z, i, j] = sum_k (a[z, i, k] - za[i]) * (b[z, k, j] - zb[j]) in 32-bit integers, for batches z
// of m x n results. With HAS_W, b is stored as words of the bytes of four columns. A work-item
// computes two neighbouring results; with HAS_W, ROWS rows by four columns.
#ifdef HAS_ZA
#define ZA(i) za_at((i) * p.za_step)
#else
#define ZA(i) 0
#endif
#ifdef HAS_ZB
#define ZB(j) zb_at((j) * p.zb_step)
#else
#define ZB(j) 0
#endif
#include "common/batches"
#ifdef SIGNED
#define BYTES(n, w) CAT(convert_int, n)(CAT(as_char, n)(w))
#else
#define BYTES(n, w) CAT(convert_int, n)(CAT(as_uchar, n)(w))
#endif

KERNEL {
#ifdef HAS_W
  uint j = 4 * get_global_id(0), i0 = get_group_id(1) * ROWS;
  if (j >= p.n) return;
  int4 zero = (int4)(ZB(j), ZB(j + 1), ZB(j + 2), ZB(j + 3));
  int4 sum[ROWS];
  int low[ROWS];
  uint row[ROWS];
  for (uint r = 0; r < ROWS; r++) {
    uint i = min(i0 + r, p.m - 1);
    row[r] = i * p.k;
    low[r] = ZA(i);
    sum[r] = (int4)(0);
  }
  for (uint k = 0; k < p.k; k++) {
    int4 right = BYTES(4, w[(k * p.n + j) / 4]) - zero;
    for (uint r = 0; r < ROWS; r++) sum[r] += (a_at(row[r] + k) - low[r]) * right;
  }
  for (uint r = 0; r < ROWS; r++)
    if (i0 + r < p.m) y_put4(((i0 + r) * p.n + j) / 4, sum[r]);
#else
  uint pair = get_global_id(0), total = p.batches * p.m * p.n;
  if (2 * pair >= total) return;
  int sum[2];
  for (uint h = 0; h < 2; h++) {
    uint at = min(2 * pair + h, total - 1);
    uint z = at / (p.m * p.n), i = at / p.n % p.m, j = at % p.n;
    uint a0 = a_start(z, p) + i * p.k, b0 = b_start(z, p) + j;
    int left = ZA(i), right = ZB(j);
    sum[h] = 0;
    for (uint k = 0; k < p.k; k++) sum[h] += (a_at(a0 + k) - left) * (b_at(b0 + k * p.n) - right);
  }
  y_put2(pair, (int2)(sum[0], sum[1]));
#endif
}
