// An elementwise kernel consists of its epilogue alone. A work-item stores two neighbouring
// results.
@compute @workgroup_size(WG)
fn pointwise(@builtin(global_invocation_id) id: vec3<u32>) {
  if (2u * id.x < p.count) { y_put2(id.x, vec2<ELEM>()); }
}
