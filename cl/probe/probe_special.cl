// Shows whether the device keeps NaN and infinities. The last element of x is 0. For each other
// element v, y gets v, the larger of v and 1, v * 0, and v + v.
KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  float v = x_at(i), zero = x_at(p.count);
  y_put2(2 * i, (float2)(v, larger(v, 1.0f)));
  y_put2(2 * i + 1, (float2)(v * zero, v + v));
}
