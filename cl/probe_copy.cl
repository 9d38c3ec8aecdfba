// y = x in vectors of four words. A work-item copies `each` of them: with NEAR neighbours, else every `next`-th.
KERNEL {
#ifdef NEAR
  uint first = get_global_id(0) * p.each;
  uint end = min(first + p.each, p.count);
  for (uint i = first; i < end; i++) y[i] = x[i];
#else
  for (uint i = get_global_id(0); i < p.count; i += p.next) y[i] = x[i];
#endif
}
