// y = apply(a, b, ...) over broadcast operands. A work-item computes two neighbouring results. The result index
// is split by the sizes n1 (innermost) to n4 and the rest; each operand has a stride for each part.
fn walk(index: u32, s0: u32, s1: u32, s2: u32, s3: u32, s4: u32) -> u32 {
#ifdef FLAT
  return index;
#else
#ifdef RANK2
  return (index % p.n1) * s0 + (index / p.n1) * s1;
#else
  var i = index;
  var at = (i % p.n1) * s0;
  i /= p.n1;
  at += (i % p.n2) * s1;
  i /= p.n2;
  at += (i % p.n3) * s2;
  i /= p.n3;
  return at + (i % p.n4) * s3 + (i / p.n4) * s4;
#endif
#endif
}

fn element(i: u32) -> Y {
  let va = a_at(walk(i, p.a0, p.a1, p.a2, p.a3, p.a4));
#ifdef HAS_B
  let vb = b_at(walk(i, p.b0, p.b1, p.b2, p.b3, p.b4));
#endif
#ifdef HAS_C
  let vc = c_at(walk(i, p.c0, p.c1, p.c2, p.c3, p.c4));
#endif
#ifdef HAS_D
  let vd = d_at(walk(i, p.d0, p.d1, p.d2, p.d3, p.d4));
#endif
#ifdef HAS_D
  return apply(va, vb, vc, vd);
#else
#ifdef HAS_C
  return apply(va, vb, vc);
#else
#ifdef HAS_B
  return apply(va, vb);
#else
  return apply(va);
#endif
#endif
#endif
}

@compute @workgroup_size(WG)
fn pointwise(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  // An odd last pair computes its first element twice: reading past the operands is never needed.
  let last = min(2u * pair + 1u, p.count - 1u);
  y_put2(pair, vec2<Y>(element(2u * pair), element(last)));
}
