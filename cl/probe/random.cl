// Numbers made up from a seed and their places: of integers any bits, of floats center + spread * u with u from -1 up to 1, those of even
// places by `center` and `spread`, those of odd ones by `center_odd` and `spread_odd`. A work-item writes every `next`-th pair of neighbours.
// A permutation of words of which neighbours tell nothing of each other.
inline uint hash(uint x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// From -1 up to 1, by the highest 24 bits.
inline float unit(uint bits) { return (float)(bits >> 8) / 8388608.0f - 1.0f; }

KERNEL {
  for (uint pair = get_global_id(0); pair < p.pairs; pair += p.next) {
    uint a = hash(hash(2 * pair) ^ p.seed), b = hash(hash(2 * pair + 1) ^ p.seed);
#ifdef BITS
    y_put2(pair, (ELEM2)((ELEM)a, (ELEM)b));
#else
    y_put2(pair, (ELEM2)(p.center + p.spread * unit(a), p.center_odd + p.spread_odd * unit(b)));
#endif
  }
}
