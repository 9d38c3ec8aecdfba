// y = x in vectors of four words. A work-item copies every `next`-th vector.
KERNEL {
  for (uint i = get_global_id(0); i < p.count; i += p.next) y[i] = x[i];
}
