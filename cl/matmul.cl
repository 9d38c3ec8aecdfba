// y[z, i, column + j] = sum_k a[z, i, k] * b[z, k, j] for batches z of m x n results. A work-item computes ROWS rows by
// COLS neighbouring columns, VECTORS of them as vectors of 16, for CPUs; with ODD (an odd n), two neighbouring results in memory, wherever
// they lie. With ROUNDS it goes on with the batch that lies the grid's length behind, until there is none. Where b is in panels of b_stride
// columns, these lie one behind another.
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
#ifdef VECTORS
// Compilers for CPUs keep sums in registers only where they know each by its number.
#define UNROLL _Pragma("unroll")
#define VEC float16
#define LANES 16
#define LOAD(at) b_run(16, at)
#define PUT(at, v) y_put_run(16, at, v)
#else
#define UNROLL
#define VECTORS 1
#define VEC float2
#define LANES 2
#define LOAD(at) b_at2((at) / 2)
#define PUT(at, v) y_put2((at) / 2, v)
#endif
#define COLS (LANES * VECTORS)
  uint j = COLS * get_global_id(0), i0 = get_group_id(1) * ROWS;
  if (j >= p.n) return;
#ifdef ROUNDS
  for (uint z = get_group_id(2); z < p.batches; z += get_num_groups(2))
#else
  uint z = get_group_id(2);
#endif
  {
    uint a0 = a_start(z, p), b0 = b_start(z, p);
#ifdef TAIL
    if (j + COLS > p.n) {
      for (uint r = i0; r < min(i0 + ROWS, p.m); r++)
        for (uint c = j; c < p.n; c++) {
          float one = 0.0f;
          for (uint k = 0; k < p.k; k++) one += a_at(a0 + r * p.k + k) * b_at(b0 + k * p.b_stride + c);
          y_put((z * p.m + r) * p.y_stride + p.column + c, one);
        }
#ifdef ROUNDS
      continue;
#else
      return;
#endif
    }
#endif
    VEC sum[ROWS * VECTORS];
    uint row[ROWS];
    UNROLL for (uint r = 0; r < ROWS; r++) row[r] = a0 + min(i0 + r, p.m - 1) * p.k;
    UNROLL for (uint i = 0; i < ROWS * VECTORS; i++) sum[i] = (VEC)(0.0f);
#ifndef TRANS_B
    uint at = b0 + j / p.b_stride * p.b_stride * p.k + j % p.b_stride;
#endif
#ifdef BY4
    // Four places of the sum at a time: their loads do not wait for each other.
    for (uint k = 0; k < p.k; k += 4) {
#ifdef TRANS_B
      float4 b0k = b_at4((b0 + j * p.b_stride + k) / 4), b1k = b_at4((b0 + (j + 1) * p.b_stride + k) / 4);
      float2 w0 = (float2)(b0k.x, b1k.x), w1 = (float2)(b0k.y, b1k.y), w2 = (float2)(b0k.z, b1k.z), w3 = (float2)(b0k.w, b1k.w);
#else
      float2 w0 = LOAD(at + k * p.b_stride), w1 = LOAD(at + (k + 1) * p.b_stride);
      float2 w2 = LOAD(at + (k + 2) * p.b_stride), w3 = LOAD(at + (k + 3) * p.b_stride);
#endif
      UNROLL for (uint r = 0; r < ROWS; r++) {
        float4 x = a_at4((row[r] + k) / 4);
        sum[r] += x.x * w0 + x.y * w1 + x.z * w2 + x.w * w3;
      }
    }
#else
    for (uint k = 0; k < p.k; k++) {
      VEC w[VECTORS];
#ifdef TRANS_B
      w[0] = (VEC)(B(b0, k, j), B(b0, k, j + 1));
#else
      UNROLL for (uint v = 0; v < VECTORS; v++) w[v] = LOAD(at + k * p.b_stride + v * LANES);
#endif
      UNROLL for (uint r = 0; r < ROWS; r++)
        UNROLL for (uint v = 0; v < VECTORS; v++) sum[r * VECTORS + v] += a_at(row[r] + k) * w[v];
    }
#endif
    UNROLL for (uint r = 0; r < ROWS; r++)
      UNROLL for (uint v = 0; v < VECTORS; v++)
        if (i0 + r < p.m) PUT((z * p.m + i0 + r) * p.y_stride + p.column + j + v * LANES, sum[r * VECTORS + v]);
  }
#endif
}
