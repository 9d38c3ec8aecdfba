// y = round(x / scale) + zero, clamped to 0 to 255, with scale = (high - low) / 255 and zero =
// round(-low / scale) for the range low to high of all elements and 0. A single work-group
// determines the range and writes pairs of results.
#include "common/reduce"

@compute @workgroup_size(WG)
fn dynamic_quantize(@builtin(local_invocation_id) local: vec3<u32>) {
  let lid = local.x;
  var low = 0.0;
  var high = 0.0;
  for (var i = lid; i < p.count; i += WG) {
    let v = x_at(i);
    low = min(low, v);
    high = max(high, v);
  }
  high = wg_max(high, lid);
  low = -wg_max(-low, lid);
  let range = (high - low) / 255.0;
  let by = select(range, 1.0, range == 0.0);
  let offset = clamp(round(-low / by), 0.0, 255.0);
  for (var pair = lid; 2u * pair < p.count; pair += WG) {
    let v = vec2<f32>(x_at(2u * pair), x_at(min(2u * pair + 1u, p.count - 1u)));
    y_put2(pair, vec2<i32>(clamp(round(v / by) + offset, vec2<f32>(0.0), vec2<f32>(255.0))));
  }
  if (lid == 0u) {
    scale_put2(0u, vec2<f32>(range));
    zero_put2(0u, vec2<i32>(i32(offset)));
  }
}
