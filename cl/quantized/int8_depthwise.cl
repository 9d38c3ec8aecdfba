// Depthwise convolution of bytes [n, in_h, in_w, 4 * words] with weights [KH, KW, 4 * words]. A
// work-item computes one word.
#include "common/int8"

KERNEL {
  uint i = get_global_id(0);
  if (i >= p.rows * p.words) return;
  uint row = i / p.words, word = i % p.words, line = row / p.out_w, channels = 4 * p.words, c = 4 * word;
  int x0 = (int)(row % p.out_w * SW) - p.pad_w, y0 = (int)(line % p.out_h * SH) - p.pad_h;
  uint image = line / p.out_h * p.in_h, fill = (uint)(p.x_zero & 255) * 0x01010101u;
  int4 s = vload4(word, (__global const int *)bias);
  for (uint ky = 0; ky < KH; ky++) {
    int iy = y0 + (int)(ky * DH);
    for (uint kx = 0; kx < KW; kx++) {
      int ix = x0 + (int)(kx * DW);
      bool inside = (uint)iy < p.in_h && (uint)ix < p.in_w;
      uint a = inside ? x[((image + (uint)iy) * p.in_w + (uint)ix) * p.words + word] : fill,
          b = w[(ky * KW + kx) * p.words + word];
      s += four_bytes(a) * four_bytes(b);
    }
  }
  int4 v = (int4)(SCALED(s.x, c, channels, p.zero, p.low, p.high),
                  SCALED(s.y, c + 1, channels, p.zero, p.low, p.high),
                  SCALED(s.z, c + 2, channels, p.zero, p.low, p.high),
                  SCALED(s.w, c + 3, channels, p.zero, p.low, p.high));
  y[i] = word_of(v);
}
