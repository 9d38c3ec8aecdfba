// y[i] = x[start + sum over parts of i of part * stride]; with `live`, start is read from there. A work-item copies two neighbouring results. The index is
// split by the sizes n1 (innermost) to n4 and the rest.
fn walk(index: u32, start: i32) -> u32 {
  var i = index;
  var at = start + i32(i % p.n1) * p.s0;
  i /= p.n1;
  at += i32(i % p.n2) * p.s1;
  i /= p.n2;
  at += i32(i % p.n3) * p.s2;
  i /= p.n3;
  return u32(at + i32(i % p.n4) * p.s3 + i32(i / p.n4) * p.s4);
}

@compute @workgroup_size(WG)
fn strided(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
#ifdef HAS_LIVE
  let start = live_at(u32(p.start));
#else
  let start = p.start;
#endif
  y_put2(pair, vec2<ELEM>(x_at(walk(2u * pair, start)), x_at(walk(min(2u * pair + 1u, p.count - 1u), start))));
}
