// y = x in vectors of four words. A work-item copies `each` of them: with NEAR neighbours, else every `next`-th.
@compute @workgroup_size(WG)
fn probe_copy(@builtin(global_invocation_id) id: vec3<u32>) {
#ifdef NEAR
  let first = id.x * p.each;
  let end = min(first + p.each, p.count);
  for (var i = first; i < end; i++) { y[i] = x[i]; }
#else
  for (var i = id.x; i < p.count; i += p.next) { y[i] = x[i]; }
#endif
}
