// Table lookup y = table[x + 128] for bytes. A work-item computes one word.
#include "common/int8"

fn entry(i: u32) -> i32 { return i32(table[i / 4u] >> (i % 4u * 8u) & 255u); }

@compute @workgroup_size(WG)
fn int8_table(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i >= p.count) { return; }
  let v = vec4<u32>(x[i] ^ 0x80808080u) >> vec4<u32>(0u, 8u, 16u, 24u) & vec4<u32>(255u);
  y[i] = word_of(vec4<i32>(entry(v.x), entry(v.y), entry(v.z), entry(v.w)));
}
