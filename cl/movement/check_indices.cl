// fault[0] = code if some index x[i] is outside an axis of n elements; n is n0, n1, n2 or n3, by
// column i % columns. Negative indices count from the end. A work-item checks one index.
KERNEL {
  uint i = get_global_id(0);
  if (i >= p.count) return;
  uint column = i % p.columns;
  int n = column == 0 ? p.n0 : column == 1 ? p.n1 : column == 2 ? p.n2 : p.n3;
  int v = x_at(i);
  if (v < -n || v >= n) fault_put(0, p.code);
}
