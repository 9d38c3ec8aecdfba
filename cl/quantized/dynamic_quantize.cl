// y = round(x / scale) + zero, clamped to 0 to 255, with scale = (high - low) / 255 and zero =
// round(-low / scale) for the range low to high of all elements and 0. A single work-group
// determines the range and writes pairs of results.
#include "common/reduce"

KERNEL {
  __local float scratch[WG + WG / 8];
  uint lid = get_local_id(0);
  float low = 0.0f, high = 0.0f;
  for (uint i = lid; i < p.count; i += WG) {
    float v = x_at(i);
    low = fmin(low, v);
    high = fmax(high, v);
  }
  high = wg_max(high, scratch);
  low = -wg_max(-low, scratch);
  float range = (high - low) / 255.0f, by = range == 0.0f ? 1.0f : range;
  float offset = clamp(rint(-low / by), 0.0f, 255.0f);
  for (uint pair = lid; 2 * pair < p.count; pair += WG) {
    float2 v = (float2)(x_at(2 * pair), x_at(min(2 * pair + 1, p.count - 1)));
    y_put2(pair, convert_int2(clamp(rint(v / by) + offset, 0.0f, 255.0f)));
  }
  if (lid == 0) {
    scale_put2(0, (float2)(range));
    zero_put2(0, (int2)((int)offset));
  }
}
