// Row at + i of the state = row i of x in 8 bits, where at = live[start] rows. A row consists of
// words of four signed bytes, followed by their common factor: the largest magnitude / 127. A
// work-group takes a row of DIM elements.
//
// If the state keeps only RING rows, positions are taken modulo RING. With HAS_PLACES, the rows of
// a token are written to the position that `places` contains, or to none if that is negative.
const PARTS: u32 = DIM / 4u;
var<workgroup> high: array<f32, WG>;

@compute @workgroup_size(WG)
fn kv_append_q8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  let row = min(group.x, p.rows - 1u);
  var most = 0.0;
  for (var i = lid; i < PARTS; i += WG) {
    let a = abs(x_at4(row * PARTS + i));
    most = max(most, max(max(a.x, a.y), max(a.z, a.w)));
  }
  high[lid] = most;
  workgroupBarrier();
  for (var i = 0u; i < WG; i++) { most = max(most, high[i]); }
  let scale = most / 127.0;
  let inverse = select(0.0, 127.0 / most, most > 0.0);
#ifdef HAS_PLACES
  let token = places_at(row / p.heads);
  if (token < 0) { return; }
  var place = u32(token) * p.heads + row % p.heads;
#else
  var place = u32(live_at(p.start)) + row;
#endif
#ifdef RING
  place %= RING;
#endif
  let at = place * (PARTS + 1u);
  if (group.x >= p.rows) { return; }
  for (var i = lid; i < PARTS; i += WG) {
    let c = vec4<i32>(round(x_at4(row * PARTS + i) * inverse)) & vec4<i32>(255);
    state[at + i] = bitcast<u32>(c.x | (c.y << 8u) | (c.z << 16u) | (c.w << 24u));
  }
  if (lid == 0u) { state[at + PARTS] = bitcast<u32>(scale); }
}
