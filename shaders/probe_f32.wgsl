// Rounds of multiply-adds in single precision: eight chains of vectors of four elements in each work-item, which writes the sum of one.
@compute @workgroup_size(WG)
fn probe_f32(@builtin(global_invocation_id) id: vec3<u32>) {
  let m = vec4<f32>(p.factor);
  let c = vec4<f32>(p.addend);
  var a0 = vec4<f32>(f32(id.x));
  var a1 = a0 + 1.0;
  var a2 = a0 + 2.0;
  var a3 = a0 + 3.0;
  var a4 = a0 + 4.0;
  var a5 = a0 + 5.0;
  var a6 = a0 + 6.0;
  var a7 = a0 + 7.0;
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
  y_put(id.x, sum.x + sum.y + sum.z + sum.w);
}
