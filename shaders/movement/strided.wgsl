// y[i] = x[start + sum over parts of i of part * stride]; with HAS_LIVE, start is read from `live`.
// The index is split into RANK parts, of sizes n1 (innermost) to n5 and the rest. A work-item
// copies two neighbouring results.
fn walk(index: u32, start: i32) -> u32 {
  var i = index;
  var at = start;
  if (RANK == 1u) { return u32(at + i32(i) * p.s0); }
  at += i32(i % p.n1) * p.s0;
  i /= p.n1;
  if (RANK == 2u) { return u32(at + i32(i) * p.s1); }
  at += i32(i % p.n2) * p.s1;
  i /= p.n2;
  if (RANK == 3u) { return u32(at + i32(i) * p.s2); }
  at += i32(i % p.n3) * p.s2;
  i /= p.n3;
  if (RANK == 4u) { return u32(at + i32(i) * p.s3); }
  at += i32(i % p.n4) * p.s3;
  i /= p.n4;
  if (RANK == 5u) { return u32(at + i32(i) * p.s4); }
  at += i32(i % p.n5) * p.s4;
  i /= p.n5;
  return u32(at + i32(i) * p.s5);
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
