// state[at + i] = x[i] with at = live[start], which is even. If the state keeps only RING elements,
// positions are taken modulo RING. With HAS_PLACES, a row of x is written to the row of the state
// that `places` contains, or to none if that is negative. A work-item copies two neighbouring
// elements.
KERNEL {
  uint pair = get_global_id(0);
#ifdef HAS_PLACES
  uint half_row = p.row / 2;
  int place = 2 * pair < p.count ? places_at(pair / half_row) : -1;
  if (place >= 0) state_put2((uint)place * half_row + pair % half_row, x_at2(pair));
#else
  uint at = (uint)live_at(p.start) / 2 + pair;
#ifdef RING
  at %= RING / 2;
#endif
  if (2 * pair < p.count) state_put2(at, x_at2(pair));
#endif
}
