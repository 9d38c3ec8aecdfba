// Numbers made up from a seed and their places: of integers any bits, of floats center + spread * u with u from -1 up to 1, those of even
// places by `center` and `spread`, those of odd ones by `center_odd` and `spread_odd`. A work-item writes every `next`-th pair of neighbours.
// A permutation of words of which neighbours tell nothing of each other.
fn hash(word: u32) -> u32 {
  var x = (word ^ (word >> 16u)) * 0x7feb352du;
  x = (x ^ (x >> 15u)) * 0x846ca68bu;
  return x ^ (x >> 16u);
}

// From -1 up to 1, by the highest 24 bits.
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
