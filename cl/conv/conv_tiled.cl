// The convolution that conv computes, as a matrix product for each image and group. Rows are output
// channels of the group, columns are results of a plane, and the sums run over input channels and
// taps. Operand a is the weights, [channels, k]; operand b is the input.
inline uint channel(uint z, uint i, Params p) { return p.first + z % p.groups * p.m + i; }
inline uint a_start(uint z, Params p) { return z % p.groups * p.m * p.k; }
inline uint b_start(uint z, Params p) {
  return (z / p.groups * p.all_groups + p.first_group + z % p.groups) * (p.k / (KH * KW)) * p.b_stride;
}
inline uint y_start(uint z, uint i, Params p) { return (z / p.groups * p.outputs + channel(z, i, p)) * p.n; }
inline uint bias_start(uint z, uint i, Params p) { return channel(z, i, p); }
#ifdef WINDOWS
// An element in each of four windows: its row and its column, which may be outside, and its
// position in b, which wraps around outside.
typedef struct { int4 row, col; uint4 at; } Taps;

// The first elements of four windows, from window j on.
inline Taps windows_from(uint b0, uint j, Params p) {
  uint4 place = min((uint4)(j, j + 1, j + 2, j + 3), (uint4)(p.n - 1)), oy = place / p.out_w;
  Taps taps;
  taps.row = convert_int4(oy * SH) - p.pad_h;
  taps.col = convert_int4((place - oy * p.out_w) * SW) - p.pad_w;
  taps.at = b0 + as_uint4(taps.row) * p.in_w + as_uint4(taps.col);
  return taps;
}

// The elements that term k of the sums multiplies.
inline Taps taps_at(Taps taps, uint k, Params p) {
  int y = (int)(k % (KH * KW) / KW * DH), x = (int)(k % KW * DW);
  taps.row += y;
  taps.col += x;
  taps.at += k / (KH * KW) * p.b_stride + (uint)y * p.in_w + (uint)x;
  return taps;
}

// One of these elements, or zero outside.
#define TAP(taps, c) ((uint)taps.row.c < p.in_h && (uint)taps.col.c < p.in_w ? b_at(taps.at.c) : 0.0f)
#endif
#include "common/tile"
