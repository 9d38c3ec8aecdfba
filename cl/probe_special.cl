// What the device keeps of NaN and infinities. The last element of x is 0. For each other element: it, the larger of it and 1, its product
// with 0, and its sum with itself.
KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  float v = x_at(i), zero = x_at(p.count);
  y_put2(2 * i, (float2)(v, larger(v, 1.0f)));
  y_put2(2 * i + 1, (float2)(v * zero, v + v));
}
