// state[at + i] = x[i] with at = live[start], even. A work-item copies two neighbouring elements.
KERNEL {
  uint pair = get_global_id(0);
  if (2 * pair < p.count) state_put2((uint)live_at(p.start) / 2 + pair, x_at2(pair));
}
