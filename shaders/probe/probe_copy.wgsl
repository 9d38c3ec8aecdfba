// y = x in vectors of four words. A work-item copies every `next`-th vector.
@compute @workgroup_size(WG)
fn probe_copy(@builtin(global_invocation_id) id: vec3<u32>) {
  for (var i = id.x; i < p.count; i += p.next) { y[i] = x[i]; }
}
