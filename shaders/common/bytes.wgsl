// Signed bytes, four to a word, in the order of the codes of an E0M weight (common/e0m): positions
// 0 4 1 5 and 2 6 3 7 of eight, or with PER4 positions 0 2 1 3 of four.
fn bytes_word(a: i32, b: i32, c: i32, d: i32) -> u32 {
  let v = vec4<u32>(vec4<i32>(a, b, c, d) & vec4<i32>(255)) << vec4<u32>(0u, 8u, 16u, 24u);
  return v.x | v.y | v.z | v.w;
}
