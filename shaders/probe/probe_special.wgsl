// Shows whether the device keeps NaN and infinities. The last element of x is 0. For each other
// element v, y gets v, the larger of v and 1, v * 0, and v + v.
@compute @workgroup_size(WG)
fn probe_special(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let v = x_at(i);
  let zero = x_at(p.count);
  y_put2(2u * i, vec2<f32>(v, larger(v, 1.0)));
  y_put2(2u * i + 1u, vec2<f32>(v * zero, v + v));
}
