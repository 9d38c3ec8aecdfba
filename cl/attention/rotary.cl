// y = x * cos + rotate_half(x) * sin for rows of dim elements; heads neighbouring rows have the
// same angles. A work-item computes two neighbouring results. With NEIGHBOURS, two neighbouring
// elements form a pair that is rotated by an angle, and the elements after the last angle are
// copied.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
#ifdef NEIGHBOURS
  uint j = pair % (p.dim / 2), angle = pair / (p.dim / 2) / p.heads * p.angles + j;
  float2 v = (float2)(x_at(2 * pair), x_at(2 * pair + 1));
  if (j < p.angles) {
    float c = cosine_at(angle), s = sine_at(angle);
    v = (float2)(v.x * c - v.y * s, v.y * c + v.x * s);
  }
  y_put2(pair, v);
#else
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = 2 * pair + h, j = i % p.dim, angle = i / p.dim / p.heads * p.angles + j;
    float other = j < p.dim / 2 ? -x_at(i + p.dim / 2) : x_at(i - p.dim / 2);
    v[h] = x_at(i) * cosine_at(angle) + other * sine_at(angle);
  }
  y_put2(pair, (float2)(v[0], v[1]));
#endif
}
