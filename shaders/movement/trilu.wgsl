// y = x on and above (UPPER) or on and below a diagonal of matrices of rows x cols, else 0. A
// work-item writes two neighbouring results.
fn element(i: u32) -> ELEM {
  let above = i32(i % p.cols) - i32(i / p.cols % p.rows) - p.diagonal;
#ifdef UPPER
  return select(ELEM(0), x_at(i), above >= 0);
#else
  return select(ELEM(0), x_at(i), above <= 0);
#endif
}

@compute @workgroup_size(WG)
fn trilu(@builtin(global_invocation_id) id: vec3<u32>) {
  let pair = id.x;
  if (2u * pair >= p.count) { return; }
  y_put2(pair, vec2<ELEM>(element(2u * pair), element(min(2u * pair + 1u, p.count - 1u))));
}
