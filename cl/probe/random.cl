// Pseudorandom numbers from a seed and their positions. With BITS, the numbers are integers with
// random bits. Otherwise they are center + spread * u with u in [-1, 1); odd positions use
// `center_odd` and `spread_odd` instead. A work-item writes every `next`-th pair of neighbours.

// A permutation of words that makes neighbours independent.
inline uint hash(uint x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// A number in [-1, 1), from the highest 24 bits.
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
