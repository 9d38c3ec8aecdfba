// Merges the partial results of attention, each over a part of the keys: sums of values, the
// maximum that they are relative to, and the total of their weights. A work-group takes a query
// vector. Each work-item computes a piece of it, and SLICES work-items share a piece: each takes
// every SLICES-th of the p.splits partial results.
#ifdef WIDE
#define VEC float4
#define WIDTH 4
#define X_AT x_at4
#define PUT y_put4
#else
#define VEC float2
#define WIDTH 2
#define X_AT x_at2
#define PUT y_put2
#endif
#define PIECES (DIM / WIDTH)
#define SLICES (WG / PIECES)
#define LOWEST -3.4028235e38f

KERNEL {
  __local VEC part_sum[WG];
  __local float part_top[WG], part_total[WG];
  uint lid = get_local_id(0), vector = get_group_id(0), piece = lid % PIECES;
  VEC sum = (VEC)(0.0f);
  float top = LOWEST, total = 0.0f;
  for (uint s = lid / PIECES; s < p.splits; s += SLICES) {
    uint at = (s * p.vectors + vector) * (PIECES + 1);
    VEC found = X_AT(at + PIECES), part = X_AT(at + piece);
    float next = fmax(top, found.x), keep = exp(top - next), scale = exp(found.x - next);
    sum = sum * keep + part * scale;
    total = total * keep + found.y * scale;
    top = next;
  }
  part_sum[lid] = sum;
  part_top[lid] = top;
  part_total[lid] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid >= PIECES) return;
  for (uint s = 1; s < SLICES; s++) {
    uint i = s * PIECES + lid;
    float next = fmax(top, part_top[i]), keep = exp(top - next), scale = exp(part_top[i] - next);
    sum = sum * keep + part_sum[i] * scale;
    total = total * keep + part_total[i] * scale;
    top = next;
  }
  PUT(vector * PIECES + piece, sum / total);
}
