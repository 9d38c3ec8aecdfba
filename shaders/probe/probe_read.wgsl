// Reads x in vectors of four words. A work-item reads every `next`-th vector and writes the sum of
// these.
@compute @workgroup_size(WG)
fn probe_read(@builtin(global_invocation_id) id: vec3<u32>) {
  var sum = vec4<u32>(0u);
  // Four loads at a time, which do not wait for each other.
  var other = vec4<u32>(0u);
  var third = vec4<u32>(0u);
  var fourth = vec4<u32>(0u);
  var i = id.x;
  for (; i + 3u * p.next < p.count; i += 4u * p.next) {
    sum += x[i];
    other += x[i + p.next];
    third += x[i + 2u * p.next];
    fourth += x[i + 3u * p.next];
  }
  for (; i < p.count; i += p.next) { sum += x[i]; }
  sum += other + third + fourth;
  y[id.x] = sum.x + sum.y + sum.z + sum.w;
}
