// The result of attention from what its work-groups found for a part of the keys each: sums of values, the maximum that they are relative to and
// the total of their weights. A work-group takes a query vector; work-items own parts of it, and SLICES of them share one, each taking every
// so many of the p.splits.
#ifdef WIDE
#define VEC float4
#define V 4
#define X_AT x_at4
#define PUT y_put4
#else
#define VEC float2
#define V 2
#define X_AT x_at2
#define PUT y_put2
#endif
#define PARTS (DIM / V)
#define SLICES (WG / PARTS)
#define LOWEST -3.4028235e38f

KERNEL {
  __local VEC part_sum[WG];
  __local float part_top[WG], part_total[WG];
  uint lid = get_local_id(0), vector = get_group_id(0), part = lid % PARTS;
  VEC sum = (VEC)(0.0f);
  float top = LOWEST, total = 0.0f;
  for (uint s = lid / PARTS; s < p.splits; s += SLICES) {
    uint at = (s * p.vectors + vector) * (PARTS + 1);
    VEC found = X_AT(at + PARTS), own = X_AT(at + part);
    float next = fmax(top, found.x), keep = exp(top - next), scale = exp(found.x - next);
    sum = sum * keep + own * scale;
    total = total * keep + found.y * scale;
    top = next;
  }
  part_sum[lid] = sum;
  part_top[lid] = top;
  part_total[lid] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lid >= PARTS) return;
  for (uint s = 1; s < SLICES; s++) {
    uint i = s * PARTS + lid;
    float next = fmax(top, part_top[i]), keep = exp(top - next), scale = exp(part_top[i] - next);
    sum = sum * keep + part_sum[i] * scale;
    total = total * keep + part_total[i] * scale;
    top = next;
  }
  PUT(vector * PARTS + part, sum / total);
}
