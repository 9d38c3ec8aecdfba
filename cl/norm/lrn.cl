// y = x / (bias + factor * sum(x^2))^beta, where the sum is over the channels from `before`
// channels before the element's own to `after` channels after it. A work-item computes two
// neighbouring results.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair >= p.count) return;
  float v[2];
  for (uint h = 0; h < 2; h++) {
    uint i = min(2 * pair + h, p.count - 1), c = i / p.plane % p.channels;
    uint first = min(c, p.before), last = min(p.channels - 1 - c, p.after);
    float s = 0.0f;
    for (uint j = 0; j <= first + last; j++) {
      float e = x_at(i + j * p.plane - first * p.plane);
      s += e * e;
    }
    v[h] = x_at(i) / pow(p.bias + p.factor * s, p.beta);
  }
  y_put2(pair, (float2)(v[0], v[1]));
}
