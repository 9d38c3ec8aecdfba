// The rate of single precision.
alias Real = f32;
#include "common/chains"

@compute @workgroup_size(WG)
fn probe_f32(@builtin(global_invocation_id) id: vec3<u32>) {
  y_put(id.x, chains(Real(f32(id.x & 7u)), Real(p.factor), Real(p.addend), p.rounds));
}
