// Pseudorandom numbers from a seed and their positions. With BITS, the numbers are integers with
// random bits. Otherwise they are center + spread * u with u in [-1, 1); odd positions use
// `center_odd` and `spread_odd` instead. A work-item writes every `next`-th pair of neighbours.

// A permutation of words that makes neighbours independent.
fn hash(word: u32) -> u32 {
  var x = (word ^ (word >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}

// A number in [-1, 1), from the highest 24 bits.
fn unit(bits: u32) -> f32 { return f32(bits >> 8u) / 8388608.0 - 1.0; }

@compute @workgroup_size(WG)
fn random(@builtin(global_invocation_id) id: vec3<u32>) {
  for (var pair = id.x; pair < p.pairs; pair += p.next) {
    let a = hash(hash(2u * pair) ^ p.seed);
    let b = hash(hash(2u * pair + 1u) ^ p.seed);
#ifdef BITS
    y_put2(pair, vec2<ELEM>(ELEM(a), ELEM(b)));
#else
    y_put2(pair, vec2<ELEM>(p.center + p.spread * unit(a), p.center_odd + p.spread_odd * unit(b)));
#endif
  }
}
