// Row at + i of the state = row i of x in 8 bits, where at = live[start] rows. A row consists of
// words of four signed bytes, followed by their common factor: the largest magnitude / 127. A
// work-group takes a row of DIM elements.
//
// If the state keeps only RING rows, positions are taken modulo RING. With HAS_PLACES, the rows of
// a token are written to the position that `places` contains, or to none if that is negative.
#define PARTS (DIM / 4)

KERNEL {
  __local float high[WG];
  uint lid = get_local_id(0), row = get_group_id(0);
  if (row >= p.rows) return;
  float most = 0.0f;
  for (uint i = lid; i < PARTS; i += WG) {
    float4 a = fabs(x_at4(row * PARTS + i));
    most = fmax(most, fmax(fmax(a.x, a.y), fmax(a.z, a.w)));
  }
  high[lid] = most;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (uint i = 0; i < WG; i++) most = fmax(most, high[i]);
  float scale = most / 127.0f, inverse = most > 0.0f ? 127.0f / most : 0.0f;
#ifdef HAS_PLACES
  int token = places_at(row / p.heads);
  if (token < 0) return;
  uint place = (uint)token * p.heads + row % p.heads;
#else
  uint place = (uint)live_at(p.start) + row;
#endif
#ifdef RING
  place %= RING;
#endif
  uint at = place * (PARTS + 1);
  for (uint i = lid; i < PARTS; i += WG) {
    int4 c = convert_int4_rte(x_at4(row * PARTS + i) * inverse) & 255;
    state[at + i] = as_uint(c.x | c.y << 8 | c.z << 16 | c.w << 24);
  }
  if (lid == 0) state[at + PARTS] = as_uint(scale);
}
