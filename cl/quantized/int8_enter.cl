// Converts integers [.., channels, inner] to bytes [.., inner, 4 * words], XORed with `flip`. The
// padding holds 0. A work-item computes one word.
KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint word = i % p.words, row = i / p.words, from = row / p.inner * p.channels * p.inner + row % p.inner, v = 0;
  for (uint b = 0; b < 4; b++) {
    uint c = 4 * word + b, q = c < p.channels ? (uint)x_at(from + c * p.inner) ^ p.flip : 0;
    v |= (q & 255u) << (8u * b);
  }
  y[i] = v;
}
