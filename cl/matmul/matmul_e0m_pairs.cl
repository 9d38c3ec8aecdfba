// y[i, column + j] = sum_k x[i, k] * w[k, j] for many rows and an E0M weight, in halves, for GPUs
// with few registers and fast half arithmetic. A work-item computes ROWS rows of 2 neighbouring
// columns. The work-group shares a stretch of x, and each weight is decoded once for all rows. With
// PARTS, the columns up to end0, up to end1 and the rest are separate results, which start at
// elements 0, start1 and start2.
//
// A result has two chains of multiply-adds, for even and odd weights, of CHAIN steps (1 or 2). They
// are added up in single precision (numeric contract, ARCHITECTURE.md).
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#include "common/e0m"
#include "common/parts"
#define STEPS (GROUP / PER)
#define CODES(at) ((__global const uint2 *)codes)[at]
#define WEIGHTS(k) mad(as_half4(E0M_PAIR(word, low, k)), by, less)
#define BOTH(v) (half4)(v, v)

KERNEL {
  __local uint4 xs[ROWS * STEPS];
  uint lid = get_local_id(0), i0 = get_group_id(1) * ROWS, steps = p.k / PER;
  uint column = (get_group_id(0) * WG + lid) * 2;
  uint j = column < p.n ? column : 0;
  uint panel = p.panel / 2, words = E0M_ROWS(steps), pairs = E0M_SCALE_ROWS(p.k);
  uint word_at = j / p.panel * words * panel + j % p.panel / 2, pair_at = j / p.panel * pairs * panel + j % p.panel / 2;
  float2 total[ROWS];
  _Pragma("unroll") for (uint r = 0; r < ROWS; r++) total[r] = (float2)(0.0f);
  for (uint first = 0, g = 0; first < steps; first += STEPS, g++) {
    // Zeros after the end of the sums.
    for (uint t = lid; t < ROWS * STEPS; t += WG) {
      uint r = t / STEPS, s = first + t % STEPS;
      xs[t] = i0 + r < p.m && s < steps ? ((__global const uint4 *)x)[(i0 + r) * steps + s] : (uint4)(0);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 pair = convert_float4(as_half4(((__global const uint2 *)scales)[pair_at + g / SPAN * panel]));
    // The factor that makes weights at most 1 / 8: 1, unless the bias is outside [2, 4].
    float2 share = 2.0f / fmax(fabs(pair.odd - 3.0f) + 1.0f, 2.0f);
    half4 by = convert_half4(share.xxyy), less = convert_half4((share * pair.odd).xxyy * (-1.0f / E0M_UNIT));
    float2 scale = pair.even * E0M_UNIT / share;
    uint count = min((uint)STEPS, steps - first);
    for (uint t = 0; t < count; t += CHAIN) {
      half4 d[ROWS];
      _Pragma("unroll") for (uint r = 0; r < ROWS; r++) d[r] = (half4)(0.0h);
      _Pragma("unroll") for (uint c = 0; c < CHAIN; c++) {
        // After the end, x is zero, so any weights will do.
        uint at = min(first + t + c, steps - 1);
        uint2 word = E0M_HIGH(CODES, word_at, at, panel), low = E0M_LOW(CODES, word_at, at, panel);
        half4 w0 = WEIGHTS(0), w1 = WEIGHTS(1), w2 = WEIGHTS(2), w3 = WEIGHTS(3);
        _Pragma("unroll") for (uint r = 0; r < ROWS; r++) {
          half8 a = as_half8(xs[r * STEPS + t + c]);
          d[r] = mad(BOTH(a.s67), w3, mad(BOTH(a.s45), w2, mad(BOTH(a.s23), w1, mad(BOTH(a.s01), w0, d[r]))));
        }
      }
      _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
        total[r] += scale * (convert_float2(d[r].even) + convert_float2(d[r].odd));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (column >= p.n) return;
  uint c = p.column + column, start = column_at(c, p), apart = columns_of(c, p.y_stride, p);
  _Pragma("unroll") for (uint r = 0; r < ROWS; r++)
    if (i0 + r < p.m) y_put2((start + (i0 + r) * apart) / 2, total[r]);
}
