enable f16;
// The rate of half precision.
alias Real = f16;
#include "common/chains"

@compute @workgroup_size(WG)
fn probe_f16(@builtin(global_invocation_id) id: vec3<u32>) {
  y_put(id.x, chains(Real(f32(id.x & 7u)), Real(p.factor), Real(p.addend), p.rounds));
}
