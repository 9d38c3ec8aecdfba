// A tile of a product of matrices: results of TM rows by TN columns of sum_k a[z, i, k] * b[z, k, j] for batches z of p.m x p.n results of
// p.k terms. With TRANS_B b is [z, j, k]; with WINDOWS column j are the elements in a window. Rows of a have p.k elements, those of b p.b_stride.
// Work-items bring blocks of KB places of the sums to local memory, and compute 4 x 4 results each. SPLIT of them sum over different
// places for the same results, which are added up at the end. With ROUNDS a work-group goes on with the batch that lies the grid's length
// behind, until there is none. Whoever includes this says where matrices and rows of results begin.
// In vectors of four: a row of a block, a row of the tile; vectors of a block that a work-item brings; work-items that sum over the same places.
#define K4 (KB / 4)
#define N4 (TN / 4)
#define A_EACH (TM * K4 / WG)
#define B_EACH (TN * K4 / WG)
#define PLACES (TM / 4 * N4)
#define DEPTH (K4 * PLACES / WG)
// Rows of K4 vectors, so turned that neighbouring work-items, whose rows are four apart, read different banks.
#define TURNED(row, k4) ((row) * K4 + ((k4) ^ ((row) / 4 % 8)))
// Four elements along k; zeros behind the end of the sums.
#define ONE(x, at, k, c) ((k) + (c) < p.k ? x##_at((at) + (c)) : 0.0f)
#define FOUR(x, at, k) (float4)(ONE(x, at, k, 0), ONE(x, at, k, 1), ONE(x, at, k, 2), ONE(x, at, k, 3))
#define ALIGNED(x, at, k) ((k) < p.k ? x##_at4((at) / 4) : (float4)(0.0f))
#ifdef A4
#define A_ALONG ALIGNED
#else
#define A_ALONG FOUR
#endif
#ifdef B4
#define B_ALONG ALIGNED
#else
#define B_ALONG FOUR
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
    // A work-item brings the same columns of every block.
    Taps windows = windows_from(b0, j0 + lid % N4 * 4, p);
#endif
    uint slice = lid / PLACES, place = lid % PLACES, row = place / N4 * 4, col = place % N4;
    float4 sum[4], a_next[A_EACH], b_next[B_EACH];
    for (uint r = 0; r < 4; r++) sum[r] = (float4)(0.0f);
    for (uint k0 = 0; k0 < p.k + KB; k0 += KB) {
      // The next block is on its way while the one before is summed.
      for (uint e = 0; e < A_EACH; e++) {
        uint t = lid + e * WG, k = k0 + t % K4 * 4, at = a0 + min(i0 + t / K4, p.m - 1) * p.k + k;
        a_next[e] = A_ALONG(a, at, k);
      }
      for (uint e = 0; e < B_EACH; e++) {
        uint t = lid + e * WG;
#ifdef TRANS_B
        uint k = k0 + t % K4 * 4, at = b0 + min(j0 + t / K4, p.n - 1) * p.b_stride + k;
        b_next[e] = B_ALONG(b, at, k);
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
          b_next[e] = (float4)(b_at(at + min(j, p.n - 1)), b_at(at + min(j + 1, p.n - 1)), b_at(at + min(j + 2, p.n - 1)),
                               b_at(at + min(j + 3, p.n - 1)));
#endif
#endif
#endif
      }
      if (k0 > 0) {
        for (uint k4 = slice * DEPTH; k4 < slice * DEPTH + DEPTH; k4++) {
#ifdef TRANS_B
          float4 c0 = b_block[TURNED(4 * col, k4)], c1 = b_block[TURNED(4 * col + 1, k4)];
          float4 c2 = b_block[TURNED(4 * col + 2, k4)], c3 = b_block[TURNED(4 * col + 3, k4)];
          float4 w0 = (float4)(c0.x, c1.x, c2.x, c3.x), w1 = (float4)(c0.y, c1.y, c2.y, c3.y);
          float4 w2 = (float4)(c0.z, c1.z, c2.z, c3.z), w3 = (float4)(c0.w, c1.w, c2.w, c3.w);
#else
          __local const float4 *w = b_block + 4 * k4 * N4 + col;
          float4 w0 = w[0], w1 = w[N4], w2 = w[2 * N4], w3 = w[3 * N4];
#endif
          for (uint r = 0; r < 4; r++) {
            float4 x = a_block[TURNED(row + r, k4)];
            sum[r] += x.x * w0;
            sum[r] += x.y * w1;
            sum[r] += x.z * w2;
            sum[r] += x.w * w3;
          }
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (uint e = 0; e < A_EACH; e++) {
        uint t = lid + e * WG;
        a_block[TURNED(t / K4, t % K4)] = a_next[e];
      }
      for (uint e = 0; e < B_EACH; e++) {
        uint t = lid + e * WG;
#ifdef TRANS_B
        b_block[TURNED(t / K4, t % K4)] = b_next[e];
#else
        b_block[t] = b_next[e];
#endif
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#ifdef SPLIT
    for (uint r = 0; r < 4; r++) pool[(4 * slice + r) * PLACES + place] = sum[r];
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    for (uint t = lid, r = 0; t < 4 * PLACES; t += WG, r++) {
#ifdef SPLIT
      float4 v = pool[t];
      for (uint s = 1; s < SPLIT; s++) v += pool[4 * s * PLACES + t];
#else
      float4 v = sum[r];
#endif
      uint i = i0 + t % PLACES / N4 * 4 + t / PLACES, j = j0 + t % N4 * 4;
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
