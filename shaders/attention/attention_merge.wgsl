// The result of attention from what its work-groups found for a part of the keys each: sums of values, the maximum that they are relative to and
// the total of their weights. A work-group takes a query vector; work-items own parts of it, and SLICES of them share one, each taking every
// so many of the p.splits.
#ifdef WIDE
alias VEC = vec4<f32>;
const V: u32 = 4u;
#else
alias VEC = vec2<f32>;
const V: u32 = 2u;
#endif
const PARTS: u32 = DIM / V;
const SLICES: u32 = WG / PARTS;
var<workgroup> part_sum: array<VEC, WG>;
var<workgroup> part_top: array<f32, WG>;
var<workgroup> part_total: array<f32, WG>;

// The weight of what is relative to `top` beside the maximum `next`.
fn scale_of(top: f32, next: f32) -> f32 { return select(0.0, exp(top - next), top - next > -80.0); }

@compute @workgroup_size(WG)
fn attention_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let vector = group.x;
  let part = lid % PARTS;
  var sum = VEC(0.0);
  var top = -3.4028235e38;
  var total = 0.0;
  for (var s = lid / PARTS; s < p.splits; s += SLICES) {
    let at = (s * p.vectors + vector) * (PARTS + 1u);
#ifdef WIDE
    let found = x_at4(at + PARTS);
    let own = x_at4(at + part);
#else
    let found = x_at2(at + PARTS);
    let own = x_at2(at + part);
#endif
    let next = max(top, found.x);
    let keep = scale_of(top, next);
    let scale = scale_of(found.x, next);
    sum = sum * keep + own * scale;
    total = total * keep + found.y * scale;
    top = next;
  }
  part_sum[lid] = sum;
  part_top[lid] = top;
  part_total[lid] = total;
  workgroupBarrier();
  if (lid < PARTS) {
    for (var s = 1u; s < SLICES; s++) {
      let i = s * PARTS + lid;
      let next = max(top, part_top[i]);
      let keep = scale_of(top, next);
      let scale = scale_of(part_top[i], next);
      sum = sum * keep + part_sum[i] * scale;
      total = total * keep + part_total[i] * scale;
      top = next;
    }
#ifdef WIDE
    y_put4(vector * PARTS + part, sum / total);
#else
    y_put2(vector * PARTS + part, sum / total);
#endif
  }
}
