// Rounds of dot products of four pairs of signed 8-bit integers, packed in words. Each work-item
// has eight chains and writes their sum.
fn with_dot(a: i32) -> i32 { return a + dot4I8Packed(bitcast<u32>(a), p.factor); }

@compute @workgroup_size(WG)
fn probe_dot(@builtin(global_invocation_id) id: vec3<u32>) {
  var a0 = i32(id.x);
  var a1 = a0 + 1;
  var a2 = a0 + 2;
  var a3 = a0 + 3;
  var a4 = a0 + 4;
  var a5 = a0 + 5;
  var a6 = a0 + 6;
  var a7 = a0 + 7;
  for (var i = 0u; i < p.rounds; i++) {
    a0 = with_dot(a0);
    a1 = with_dot(a1);
    a2 = with_dot(a2);
    a3 = with_dot(a3);
    a4 = with_dot(a4);
    a5 = with_dot(a5);
    a6 = with_dot(a6);
    a7 = with_dot(a7);
  }
  y_put(id.x, f32(a0 ^ a1 ^ a2 ^ a3 ^ a4 ^ a5 ^ a6 ^ a7));
}
