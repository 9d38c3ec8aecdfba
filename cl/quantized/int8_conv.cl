// Convolution of bytes [n, in_h, in_w, 4 * words] with weights in panels of four output channels,
// each of KH * KW * depth words; also a matmul. Output words of group g read `depth` input words
// from g * depth on. A work-item computes one word for each of RUN neighbouring windows.
#define COLS 4
#include "common/dot"
#include "common/int8"
#define EACH_RESULT _Pragma("unroll") for (uint r = 0; r < RUN; r++)

KERNEL {
  uint first = (get_group_id(0) * WG + get_local_id(0)) * RUN, o = get_group_id(1);
  if (first >= p.rows) return;
  uint part = o / p.group * p.depth, fill = (uint)(p.x_zero & 255) * 0x01010101u;
  __global const uint4 *at = (__global const uint4 *)w + o * (KH * KW) * p.depth;
  int4 sums[RUN], start = vload4(o, (__global const int *)bias);
  int y0[RUN], x0[RUN];
  uint image[RUN];
  EACH_RESULT {
    uint row = min(first + r, p.rows - 1), line = row / p.out_w;
    sums[r] = start;
    x0[r] = (int)(row % p.out_w * SW) - p.pad_w;
    y0[r] = (int)(line % p.out_h * SH) - p.pad_h;
    image[r] = line / p.out_h * p.in_h;
  }
  for (uint ky = 0; ky < KH; ky++) {
    for (uint kx = 0; kx < KW; kx++) {
      uint from[RUN], keep[RUN];
      EACH_RESULT {
        int iy = y0[r] + (int)(ky * DH), ix = x0[r] + (int)(kx * DW);
        bool inside = (uint)iy < p.in_h && (uint)ix < p.in_w;
        keep[r] = inside ? 0xFFFFFFFFu : 0u;
        from[r] = inside ? ((image[r] + (uint)iy) * p.in_w + (uint)ix) * p.words + part : part;
      }
      for (uint d = 0; d < p.depth; d++, at++) {
        uint4 words = *at;
        EACH_RESULT {
          uint a = (x[from[r] + d] & keep[r]) | (fill & ~keep[r]);
          sums[r] = DOT(sums[r], words, a);
        }
      }
    }
  }
  uint c = 4 * o, channels = 4 * p.outputs;
  for (uint r = 0; r < RUN && first + r < p.rows; r++) {
    int4 s = sums[0];
    _Pragma("unroll") for (uint q = 1; q < RUN; q++) s = q == r ? sums[q] : s;
    int4 v = (int4)(SCALED(s.x, c, channels, p.zero, p.low, p.high),
                    SCALED(s.y, c + 1, channels, p.zero, p.low, p.high),
                    SCALED(s.z, c + 2, channels, p.zero, p.low, p.high),
                    SCALED(s.w, c + 3, channels, p.zero, p.low, p.high));
    y[(first + r) * p.outputs + o] = word_of(v);
  }
}
