// y[i] = live[start] + i * delta. A work-item writes two neighbouring results.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  int first = live_at(p.start) + (int)(2 * pair) * p.delta;
  y_put2(pair, (ELEM2)(first, first + p.delta));
}
