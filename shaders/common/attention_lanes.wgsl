// The attention of many rows where lanes of a sub-group share what they load: a work-group is eight lanes, each with a query vector of those that
// share keys, heads of a row first. A lane loads keys for the scores of all, 16 at a time, and 4 elements in 32 of a value, whose products with the
// weights of the eight vectors it sums.
const PARTS: u32 = DIM / 4u;
// Parts of a value that a lane has.
const EACH: u32 = DIM / 32u;
const LOWEST: f32 = -3.4028235e38;

// The scores of eight queries with four keys, which lanes have a part of each.
fn dots(x: vec4<f32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> vec4<f32> {
  return vec4<f32>(dot(x, a), dot(x, b), dot(x, c), dot(x, d));
}

// Final scores with four keys from `first` on, of `mask`, where the row of the mask begins.
fn finished(products: vec4<f32>, first: u32, keys: u32, mask: u32) -> vec4<f32> {
  var score = products * p.scale;
#ifdef CAPPED
  score = p.softcap * tanh(clamp(score / p.softcap, vec4<f32>(-20.0), vec4<f32>(20.0)));
#endif
  let key = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
#ifdef HAS_MASK
  let at = vec4<u32>(mask) + min(key, vec4<u32>(keys - 1u)) * p.mask_t;
  score += vec4<f32>(mask_at(at.x), mask_at(at.y), mask_at(at.z), mask_at(at.w));
#endif
  return select(vec4<f32>(LOWEST), score, key < vec4<u32>(keys));
}

// Weights of four keys from `first` on. Where the mask is the least float, keys that are not there would count as much as the hidden ones.
fn weights(score: vec4<f32>, top: f32, first: u32, keys: u32) -> vec4<f32> {
  let d = score - top;
  let key = vec4<u32>(first, first + 1u, first + 2u, first + 3u);
  return select(vec4<f32>(), exp(d), d > vec4<f32>(-80.0) & key < vec4<u32>(keys));
}

fn most(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }

@compute @workgroup_size(WG)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let together = p.heads / p.kv_heads;
  let kv = group.x;
  let batch = group.z;
  let all = p.rows * together;
  // Lanes without a vector go on with the last one.
  let own = min(group.y * WG + lane, all - 1u);
  let row = own / together;
  let head = kv * together + own % together;
  let query = ((batch * p.rows + row) * p.heads + head) * PARTS;
  let mask = batch * p.mask_b + head * p.mask_h + row * p.mask_s;
  let all_keys = u32(live_at(p.live_keys));
#ifdef CAUSAL
  // Keys that this row sees, and the last row of the group, which sees most.
  let keys = all_keys - p.rows + row + 1u;
  let end = all_keys - p.rows + min(group.y * WG + WG - 1u, all - 1u) / together + 1u;
#else
  let keys = all_keys;
  let end = all_keys;
#endif
  let past = batch * p.keys;
  var top = LOWEST;
  var total = 0.0;
  var r0: array<vec4<f32>, EACH>;
  var r1: array<vec4<f32>, EACH>;
  var r2: array<vec4<f32>, EACH>;
  var r3: array<vec4<f32>, EACH>;
  var r4: array<vec4<f32>, EACH>;
  var r5: array<vec4<f32>, EACH>;
  var r6: array<vec4<f32>, EACH>;
  var r7: array<vec4<f32>, EACH>;
  for (var first = 0u; first < end; first += 16u) {
    let k0 = ((past + min(first + lane, end - 1u)) * p.kv_heads + kv) * PARTS;
    let k8 = ((past + min(first + 8u + lane, end - 1u)) * p.kv_heads + kv) * PARTS;
    var s0 = vec4<f32>();
    var s4 = vec4<f32>();
    var s8 = vec4<f32>();
    var s12 = vec4<f32>();
    for (var i = 0u; i < PARTS; i++) {
      let x = q_at4(query + i);
      let a = k_at4(k0 + i);
      let b = k_at4(k8 + i);
      s0 += dots(x, subgroupBroadcast(a, 0u), subgroupBroadcast(a, 1u), subgroupBroadcast(a, 2u), subgroupBroadcast(a, 3u));
      s4 += dots(x, subgroupBroadcast(a, 4u), subgroupBroadcast(a, 5u), subgroupBroadcast(a, 6u), subgroupBroadcast(a, 7u));
      s8 += dots(x, subgroupBroadcast(b, 0u), subgroupBroadcast(b, 1u), subgroupBroadcast(b, 2u), subgroupBroadcast(b, 3u));
      s12 += dots(x, subgroupBroadcast(b, 4u), subgroupBroadcast(b, 5u), subgroupBroadcast(b, 6u), subgroupBroadcast(b, 7u));
    }
    s0 = finished(s0, first, keys, mask);
    s4 = finished(s4, first + 4u, keys, mask);
    s8 = finished(s8, first + 8u, keys, mask);
    s12 = finished(s12, first + 12u, keys, mask);
    let next = max(top, most(max(max(s0, s4), max(s8, s12))));
    let keep = exp(max(top - next, -80.0));
    top = next;
    var w = array<vec4<f32>, 4>(
      weights(s0, top, first, keys),
      weights(s4, top, first + 4u, keys),
      weights(s8, top, first + 8u, keys),
      weights(s12, top, first + 12u, keys),
    );
    total = total * keep + dot(w[0] + w[1] + w[2] + w[3], vec4<f32>(1.0));
    for (var e = 0u; e < EACH; e++) {
      r0[e] *= subgroupBroadcast(keep, 0u);
      r1[e] *= subgroupBroadcast(keep, 1u);
      r2[e] *= subgroupBroadcast(keep, 2u);
      r3[e] *= subgroupBroadcast(keep, 3u);
      r4[e] *= subgroupBroadcast(keep, 4u);
      r5[e] *= subgroupBroadcast(keep, 5u);
      r6[e] *= subgroupBroadcast(keep, 6u);
      r7[e] *= subgroupBroadcast(keep, 7u);
    }
    for (var c = 0u; c < 4u; c++) {
      let weight = w[c];
      let key = first + 4u * c;
      let v0 = ((past + min(key, end - 1u)) * p.kv_heads + kv) * PARTS + lane;
      for (var e = 0u; e < EACH; e++) {
        let v = v_at4(v0 + 8u * e);
        r0[e] += subgroupBroadcast(weight.x, 0u) * v;
        r1[e] += subgroupBroadcast(weight.x, 1u) * v;
        r2[e] += subgroupBroadcast(weight.x, 2u) * v;
        r3[e] += subgroupBroadcast(weight.x, 3u) * v;
        r4[e] += subgroupBroadcast(weight.x, 4u) * v;
        r5[e] += subgroupBroadcast(weight.x, 5u) * v;
        r6[e] += subgroupBroadcast(weight.x, 6u) * v;
        r7[e] += subgroupBroadcast(weight.x, 7u) * v;
      }
      let v1 = ((past + min(key + 1u, end - 1u)) * p.kv_heads + kv) * PARTS + lane;
      for (var e = 0u; e < EACH; e++) {
        let v = v_at4(v1 + 8u * e);
        r0[e] += subgroupBroadcast(weight.y, 0u) * v;
        r1[e] += subgroupBroadcast(weight.y, 1u) * v;
        r2[e] += subgroupBroadcast(weight.y, 2u) * v;
        r3[e] += subgroupBroadcast(weight.y, 3u) * v;
        r4[e] += subgroupBroadcast(weight.y, 4u) * v;
        r5[e] += subgroupBroadcast(weight.y, 5u) * v;
        r6[e] += subgroupBroadcast(weight.y, 6u) * v;
        r7[e] += subgroupBroadcast(weight.y, 7u) * v;
      }
      let v2 = ((past + min(key + 2u, end - 1u)) * p.kv_heads + kv) * PARTS + lane;
      for (var e = 0u; e < EACH; e++) {
        let v = v_at4(v2 + 8u * e);
        r0[e] += subgroupBroadcast(weight.z, 0u) * v;
        r1[e] += subgroupBroadcast(weight.z, 1u) * v;
        r2[e] += subgroupBroadcast(weight.z, 2u) * v;
        r3[e] += subgroupBroadcast(weight.z, 3u) * v;
        r4[e] += subgroupBroadcast(weight.z, 4u) * v;
        r5[e] += subgroupBroadcast(weight.z, 5u) * v;
        r6[e] += subgroupBroadcast(weight.z, 6u) * v;
        r7[e] += subgroupBroadcast(weight.z, 7u) * v;
      }
      let v3 = ((past + min(key + 3u, end - 1u)) * p.kv_heads + kv) * PARTS + lane;
      for (var e = 0u; e < EACH; e++) {
        let v = v_at4(v3 + 8u * e);
        r0[e] += subgroupBroadcast(weight.w, 0u) * v;
        r1[e] += subgroupBroadcast(weight.w, 1u) * v;
        r2[e] += subgroupBroadcast(weight.w, 2u) * v;
        r3[e] += subgroupBroadcast(weight.w, 3u) * v;
        r4[e] += subgroupBroadcast(weight.w, 4u) * v;
        r5[e] += subgroupBroadcast(weight.w, 5u) * v;
        r6[e] += subgroupBroadcast(weight.w, 6u) * v;
        r7[e] += subgroupBroadcast(weight.w, 7u) * v;
      }
    }
  }
  for (var e = 0u; e < EACH; e++) {
    put(group, 0u, lane + 8u * e, r0[e] / subgroupBroadcast(total, 0u));
    put(group, 1u, lane + 8u * e, r1[e] / subgroupBroadcast(total, 1u));
    put(group, 2u, lane + 8u * e, r2[e] / subgroupBroadcast(total, 2u));
    put(group, 3u, lane + 8u * e, r3[e] / subgroupBroadcast(total, 3u));
    put(group, 4u, lane + 8u * e, r4[e] / subgroupBroadcast(total, 4u));
    put(group, 5u, lane + 8u * e, r5[e] / subgroupBroadcast(total, 5u));
    put(group, 6u, lane + 8u * e, r6[e] / subgroupBroadcast(total, 6u));
    put(group, 7u, lane + 8u * e, r7[e] / subgroupBroadcast(total, 7u));
  }
}

// Part i of the result of vector n of the work-group.
fn put(group: vec3<u32>, n: u32, i: u32, v: vec4<f32>) {
  let together = p.heads / p.kv_heads;
  let own = group.y * WG + n;
  if (own >= p.rows * together) { return; }
  let row = group.z * p.rows + own / together;
  y_put4((row * p.heads + group.x * together + own % together) * PARTS + i, v);
}
