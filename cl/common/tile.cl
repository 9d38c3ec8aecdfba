// A tile of a matrix product: results of TM rows by TN columns of sum_k a[z, i, k] * b[z, k, j] for
// batches z of p.m x p.n results with p.k terms. Rows of a have p.k elements, those of b
// p.b_stride. With TRANS_B, b is [z, j, k]. With WINDOWS, column j consists of the elements in a
// window.
//
// Work-items load blocks of KB terms to local memory, and compute 4 x 4 results each. SPLIT
// work-items sum different terms of the same results, which are added up at the end. With ROUNDS, a
// work-group continues with the batch that is the grid's length further on, until there is none.
// The including file defines where matrices and rows of results begin.
//
// In vectors of four: a row of a block, a row of the tile, and the vectors of a block that a
// work-item loads. Then the number of 4 x 4 blocks of results, and the vectors of a block that a
// work-item sums.
#define K4 (KB / 4)
#define N4 (TN / 4)
#define A_VECTORS (TM * K4 / WG)
#define B_VECTORS (TN * K4 / WG)
#define RESULT_BLOCKS (TM / 4 * N4)
#define DEPTH (K4 * RESULT_BLOCKS / WG)
// Index in rows of K4 vectors, permuted so that neighbouring work-items, whose rows are four apart,
// read different banks.
#define SWIZZLED(row, k4) ((row) * K4 + ((k4) ^ ((row) / 4 % 8)))
// Four elements along k, or zeros after the end of the sums.
#define ELEMENT_OR_ZERO(x, at, k, c) ((k) + (c) < p.k ? x##_at((at) + (c)) : 0.0f)
#define FOUR_OR_ZERO(x, at, k) \
  (float4)(ELEMENT_OR_ZERO(x, at, k, 0), ELEMENT_OR_ZERO(x, at, k, 1), ELEMENT_OR_ZERO(x, at, k, 2), \
      ELEMENT_OR_ZERO(x, at, k, 3))
#define ALIGNED_OR_ZERO(x, at, k) ((k) < p.k ? x##_at4((at) / 4) : (float4)(0.0f))
#ifdef A4
#define LOAD_A ALIGNED_OR_ZERO
#else
#define LOAD_A FOUR_OR_ZERO
#endif
#ifdef B4
#define LOAD_B ALIGNED_OR_ZERO
#else
#define LOAD_B FOUR_OR_ZERO
#endif

KERNEL {
  __local float4 pool[POOL];
  __local float4 *a_block = pool, *b_block = pool + TM * K4;
  uint lid = get_local_id(0), i0 = get_group_id(1) * TM, j0 = get_group_id(0) * TN;
#ifdef ROUNDS
  for (uint z = get_group_id(2); z < p.batches; z += get_num_groups(2))
#else
  uint z = get_group_id(2);
#endif
  {
    uint a0 = a_start(z, p), b0 = b_start(z, p);
#ifdef WINDOWS
    // A work-item loads the same columns of every block.
    Taps windows = windows_from(b0, j0 + lid % N4 * 4, p);
#endif
    uint slice = lid / RESULT_BLOCKS, place = lid % RESULT_BLOCKS, row = place / N4 * 4, col = place % N4;
    float4 sum[4], a_next[A_VECTORS], b_next[B_VECTORS];
    for (uint r = 0; r < 4; r++) sum[r] = (float4)(0.0f);
    for (uint k0 = 0; k0 < p.k + KB; k0 += KB) {
      // The next block is loaded while the previous one is summed.
      for (uint e = 0; e < A_VECTORS; e++) {
        uint t = lid + e * WG, k = k0 + t % K4 * 4, at = a0 + min(i0 + t / K4, p.m - 1) * p.k + k;
        a_next[e] = LOAD_A(a, at, k);
      }
      for (uint e = 0; e < B_VECTORS; e++) {
        uint t = lid + e * WG;
#ifdef TRANS_B
        uint k = k0 + t % K4 * 4, at = b0 + min(j0 + t / K4, p.n - 1) * p.b_stride + k;
        b_next[e] = LOAD_B(b, at, k);
#else
#ifdef WINDOWS
        uint k = k0 + t / N4;
        Taps taps = taps_at(windows, k, p);
        b_next[e] = k < p.k ? (float4)(TAP(taps, x), TAP(taps, y), TAP(taps, z), TAP(taps, w)) : (float4)(0.0f);
#else
        uint k = k0 + t / N4, j = j0 + t % N4 * 4, at = b0 + k * p.b_stride;
#ifdef B4
        b_next[e] = k < p.k ? b_at4((at + (j < p.n ? j : 0)) / 4) : (float4)(0.0f);
#else
        b_next[e] = (float4)(0.0f);
        if (k < p.k)
          b_next[e] = (float4)(b_at(at + min(j, p.n - 1)), b_at(at + min(j + 1, p.n - 1)),
              b_at(at + min(j + 2, p.n - 1)), b_at(at + min(j + 3, p.n - 1)));
#endif
#endif
#endif
      }
      if (k0 > 0) {
        for (uint k4 = slice * DEPTH; k4 < slice * DEPTH + DEPTH; k4++) {
#ifdef TRANS_B
          float4 c0 = b_block[SWIZZLED(4 * col, k4)], c1 = b_block[SWIZZLED(4 * col + 1, k4)];
          float4 c2 = b_block[SWIZZLED(4 * col + 2, k4)], c3 = b_block[SWIZZLED(4 * col + 3, k4)];
          float4 w0 = (float4)(c0.x, c1.x, c2.x, c3.x), w1 = (float4)(c0.y, c1.y, c2.y, c3.y);
          float4 w2 = (float4)(c0.z, c1.z, c2.z, c3.z), w3 = (float4)(c0.w, c1.w, c2.w, c3.w);
#else
          __local const float4 *w = b_block + 4 * k4 * N4 + col;
          float4 w0 = w[0], w1 = w[N4], w2 = w[2 * N4], w3 = w[3 * N4];
#endif
          for (uint r = 0; r < 4; r++) {
            float4 x = a_block[SWIZZLED(row + r, k4)];
            sum[r] += x.x * w0;
            sum[r] += x.y * w1;
            sum[r] += x.z * w2;
            sum[r] += x.w * w3;
          }
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint e = 0; e < A_VECTORS; e++) {
        uint t = lid + e * WG;
        a_block[SWIZZLED(t / K4, t % K4)] = a_next[e];
      }
      for (uint e = 0; e < B_VECTORS; e++) {
        uint t = lid + e * WG;
#ifdef TRANS_B
        b_block[SWIZZLED(t / K4, t % K4)] = b_next[e];
#else
        b_block[t] = b_next[e];
#endif
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#ifdef SPLIT
    for (uint r = 0; r < 4; r++) pool[(4 * slice + r) * RESULT_BLOCKS + place] = sum[r];
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (uint t = lid, r = 0; t < 4 * RESULT_BLOCKS; t += WG, r++) {
#ifdef SPLIT
      float4 v = pool[t];
      for (uint s = 1; s < SPLIT; s++) v += pool[4 * s * RESULT_BLOCKS + t];
#else
      float4 v = sum[r];
#endif
      uint i = i0 + t % RESULT_BLOCKS / N4 * 4 + t / RESULT_BLOCKS, j = j0 + t % N4 * 4;
      if (i >= p.m || j >= p.n) continue;
      uint to = y_start(z, i, p) + j;
#ifdef HAS_BIAS
      v += bias_at(bias_start(z, i, p));
#endif
#ifdef Y4
      y_put4(to / 4, v);
#else
#ifdef ODD
      y_put(to, v.x);
      if (j + 1 < p.n) y_put(to + 1, v.y);
      if (j + 2 < p.n) y_put(to + 2, v.z);
      if (j + 3 < p.n) y_put(to + 3, v.w);
#else
      y_put2(to / 2, v.xy);
      if (j + 2 < p.n) y_put2(to / 2 + 1, v.zw);
#endif
#endif
    }
  }
}
