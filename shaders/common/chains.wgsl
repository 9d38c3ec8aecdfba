// Rounds of multiply-adds of type Real: eight chains of vectors of four elements, and the sum of
// all.
fn chains(start: Real, factor: Real, addend: Real, rounds: u32) -> f32 {
  let m = vec4<Real>(factor);
  let c = vec4<Real>(addend);
  let one = vec4<Real>(Real(1.0));
  var a0 = vec4<Real>(start);
  var a1 = a0 + one;
  var a2 = a1 + one;
  var a3 = a2 + one;
  var a4 = a3 + one;
  var a5 = a4 + one;
  var a6 = a5 + one;
  var a7 = a6 + one;
  for (var i = 0u; i < rounds; i++) {
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
  return f32(sum.x + sum.y + sum.z + sum.w);
}
