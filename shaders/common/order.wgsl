// The order of floats as that of integers: zeros are equal, and all NaNs are `nan`.
fn order_of(v: f32, nan: i32) -> i32 {
  let bits = bitcast<i32>(v);
  let magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) { return nan; }
  return select(magnitude, -magnitude, bits < 0);
}
