// Joins rows of a_len and b_len elements. A work-item writes two neighbouring results.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  ELEM v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1);
    uint row = i / (p.a_len + p.b_len), at = i % (p.a_len + p.b_len);
    v[h] = at < p.a_len ? a_at(row * p.a_len + at) : b_at(row * p.b_len + at - p.a_len);
  }
  y_put2(pair, (ELEM2)(v[0], v[1]));
}
