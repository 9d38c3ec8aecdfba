// Merges the partial results of attention, each over a part of the keys: sums of values, the
// maximum that they are relative to, and the total of their weights. A work-group takes a query
// vector. Each work-item computes a piece of it, and SLICES work-items share a piece: each takes
// every SLICES-th of the p.splits partial results.
#ifdef WIDE
alias VEC = vec4<f32>;
const WIDTH: u32 = 4u;
#else
alias VEC = vec2<f32>;
const WIDTH: u32 = 2u;
#endif
const PIECES: u32 = DIM / WIDTH;
const SLICES: u32 = WG / PIECES;
var<workgroup> part_sum: array<VEC, WG>;
var<workgroup> part_top: array<f32, WG>;
var<workgroup> part_total: array<f32, WG>;

// The factor that makes a sum relative to `top` relative to the maximum `next`.
fn scale_of(top: f32, next: f32) -> f32 { return select(0.0, exp(top - next), top - next > -80.0); }

@compute @workgroup_size(WG)
fn attention_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let vector = group.x;
  let piece = lid % PIECES;
  var sum = VEC(0.0);
  var top = -3.4028235e38;
  var total = 0.0;
  for (var s = lid / PIECES; s < p.splits; s += SLICES) {
    let at = (s * p.vectors + vector) * (PIECES + 1u);
#ifdef WIDE
    let found = x_at4(at + PIECES);
    let part = x_at4(at + piece);
#else
    let found = x_at2(at + PIECES);
    let part = x_at2(at + piece);
#endif
    let next = max(top, found.x);
    let keep = scale_of(top, next);
    let scale = scale_of(found.x, next);
    sum = sum * keep + part * scale;
    total = total * keep + found.y * scale;
    top = next;
  }
  part_sum[lid] = sum;
  part_top[lid] = top;
  part_total[lid] = total;
  workgroupBarrier();
  if (lid < PIECES) {
    for (var s = 1u; s < SLICES; s++) {
      let i = s * PIECES + lid;
      let next = max(top, part_top[i]);
      let keep = scale_of(top, next);
      let scale = scale_of(part_top[i], next);
      sum = sum * keep + part_sum[i] * scale;
      total = total * keep + part_total[i] * scale;
      top = next;
    }
#ifdef WIDE
    y_put4(vector * PIECES + piece, sum / total);
#else
    y_put2(vector * PIECES + piece, sum / total);
#endif
  }
}
