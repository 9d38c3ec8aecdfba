// y = x * cos + rotate_half(x) * sin over rows of dim elements; heads neighbouring rows share an angle. A work-item computes two
// neighbouring results.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = 2 * pair + h, j = i % p.dim, angle = i / p.dim / p.heads * p.dim + j;
    float other = j < p.dim / 2 ? -x_at(i + p.dim / 2) : x_at(i - p.dim / 2);
    v[h] = x_at(i) * cosine_at(angle) + other * sine_at(angle);
  }
  y_put2(pair, (float2)(v[0], v[1]));
}
