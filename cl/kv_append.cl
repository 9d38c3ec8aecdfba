// state[at + i] = x[i] with at = live[start], even; behind RING elements, if so many are kept, from the start again. A work-item copies two
// neighbouring elements.
KERNEL {
  uint pair = get_global_id(0);
  uint at = (uint)live_at(p.start) / 2 + pair;
#ifdef RING
  at %= RING / 2;
#endif
  if (2 * pair < p.count) state_put2(at, x_at2(pair));
}
