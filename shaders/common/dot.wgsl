// Dot products of the four bytes of words: codes of an E0M weight, of four columns, with
// activations as signed bytes, one word for all. Codes of 8 bits are signed too, that is, code -
// 128.
#ifdef PER4
const CODES_UNIT = 128.0;
const LEAST_LEVEL = 3.0;
fn codes_of(words: vec4<u32>) -> vec4<u32> { return words ^ vec4<u32>(0x80808080u); }
#else
// Number of codes per unit of w1.
const CODES_UNIT = 8.0;
const LEAST_LEVEL = 2.0;
#endif

// Adds the dot products of a word to the sums.
fn dots(before: vec4<i32>, words: vec4<u32>, a: u32) -> vec4<i32> {
  return before + vec4<i32>(dot4I8Packed(words.x, a), dot4I8Packed(words.y, a), dot4I8Packed(words.z, a),
      dot4I8Packed(words.w, a));
}
