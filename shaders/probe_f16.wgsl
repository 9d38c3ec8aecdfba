enable f16;
// Rounds of multiply-adds in half precision: eight chains of vectors of four elements in each work-item, which writes the sum of one.
@compute @workgroup_size(WG)
fn probe_f16(@builtin(global_invocation_id) id: vec3<u32>) {
  let m = vec4<f16>(f16(p.factor));
  let c = vec4<f16>(f16(p.addend));
  let one = vec4<f16>(f16(1.0));
  var a0 = vec4<f16>(f16(f32(id.x & 7u)));
  var a1 = a0 + one;
  var a2 = a1 + one;
  var a3 = a2 + one;
  var a4 = a3 + one;
  var a5 = a4 + one;
  var a6 = a5 + one;
  var a7 = a6 + one;
  for (var i = 0u; i < p.rounds; i++) {
    a0 = fma(a0, m, c);
    a1 = fma(a1, m, c);
    a2 = fma(a2, m, c);
    a3 = fma(a3, m, c);
    a4 = fma(a4, m, c);
    a5 = fma(a5, m, c);
    a6 = fma(a6, m, c);
    a7 = fma(a7, m, c);
  }
  let sum = a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7;
  y_put(id.x, f32(sum.x + sum.y + sum.z + sum.w));
}
