// fault[0] = code if some index x[i] is outside an axis of n elements; n is n0, n1, n2 or n3, by
// column i % columns. Negative indices count from the end. A work-item checks one index.
@compute @workgroup_size(WG)
fn check_indices(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let column = i % p.columns;
  let n = select(select(select(p.n3, p.n2, column == 2u), p.n1, column == 1u), p.n0, column == 0u);
  let v = x_at(i);
  if (v < -n || v >= n) { fault_put(0u, p.code); }
}
