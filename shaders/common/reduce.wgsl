// Reductions over a work-group whose size WG is a multiple of 8. Every work-item calls, and every
// work-item gets the result. Two short levels instead of a tree need only three barriers, which are
// what costs time on CPU drivers.
var<workgroup> scratch: array<f32, WG + WG / 8u>;

fn wg_sum(v: f32, lid: u32) -> f32 {
  scratch[lid] = v;
  workgroupBarrier();
  if (lid < WG / 8u) {
    var s = 0.0;
    for (var i = 0u; i < 8u; i++) { s += scratch[lid * 8u + i]; }
    scratch[WG + lid] = s;
  }
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < WG / 8u; i++) { total += scratch[WG + i]; }
  workgroupBarrier();
  return total;
}

// NaN propagates.
fn larger_float(a: f32, b: f32) -> f32 { return select(select(max(a, b), b, is_nan(b)), a, is_nan(a)); }

fn wg_max(v: f32, lid: u32) -> f32 {
  scratch[lid] = v;
  workgroupBarrier();
  if (lid < WG / 8u) {
    var s = scratch[lid * 8u];
    for (var i = 1u; i < 8u; i++) { s = larger_float(s, scratch[lid * 8u + i]); }
    scratch[WG + lid] = s;
  }
  workgroupBarrier();
  var total = scratch[WG];
  for (var i = 1u; i < WG / 8u; i++) { total = larger_float(total, scratch[WG + i]); }
  workgroupBarrier();
  return total;
}
