// y[column + j] = sum_k x[k] * w[k, j] for one row x of DEPTH elements and an E0M weight of 4 or 8
// bits. Every work-group quantizes x to signed bytes, in blocks of GROUP elements. LANES work-items
// take COLS (4) neighbouring columns each. The work-items of a work-group that share columns take
// every SLICES-th block each. For the sum over a block, see matmul_e0m_int8.
//
// With HAS_GAIN, x is normalized first: x / sqrt(mean of squares + epsilon) * gain. With PARTS, the
// columns up to end0, up to end1 and the rest are separate results, which start at elements 0,
// start1 and start2. With HAS_CODES2, every other slice multiplies by a second weight of the same
// size, and the epilogue takes the results of both.
#include "common/e0m"
#include "common/parts"
#include "common/dot"
#include "common/bytes"
const SLICES: u32 = WG / LANES;
const STRETCH: u32 = GROUP / PER;
const BLOCKS: u32 = (DEPTH + GROUP - 1u) / GROUP;
var<workgroup> bytes: array<u32, DEPTH / 4u>;
// The factor of the bytes of a block, and that factor times their sum.
var<workgroup> factors: array<vec2<f32>, BLOCKS>;
#ifdef HAS_GAIN
var<workgroup> squares: array<f32, WG>;
#endif
var<workgroup> part: array<vec4<f32>, WG>;

fn value(i: u32) -> vec4<f32> {
#ifdef HAS_GAIN
  return x_at4(i) * gain_at4(i);
#else
  return x_at4(i);
#endif
}

#ifdef HAS_CODES2
const SIDES = 2u;

fn put(at: u32, v: vec4<f32>, u: vec4<f32>) {
  if (at < p.n) { y_put2(column_at(p.column + at) / 2u, v.xy, u.xy); }
  if (at + 2u < p.n) { y_put2(column_at(p.column + at + 2u) / 2u, v.zw, u.zw); }
}
#else
const SIDES = 1u;

fn put(at: u32, v: vec4<f32>, u: vec4<f32>) {
  if (at < p.n) { y_put2(column_at(p.column + at) / 2u, v.xy); }
  if (at + 2u < p.n) { y_put2(column_at(p.column + at + 2u) / 2u, v.zw); }
}
#endif

// The product of the columns from j on with every `apart`-th block, from block `begin` on.
fn product(j: u32, begin: u32, apart: u32) -> vec4<f32> {
  let panel = p.panel / 4u;
  let word_at = j / p.panel * e0m_rows(DEPTH / PER) * panel + j % p.panel / 4u;
  let pair_at = j / p.panel * e0m_scale_rows(DEPTH) * panel + j % p.panel / 4u;
  var total = vec4<f32>();
  for (var g = begin; g < BLOCKS; g += apart) {
    var sums = vec4<i32>();
    let end = min((g + 1u) * STRETCH, DEPTH / PER);
    for (var t = g * STRETCH; t < end; t++) {
      let words = codes_at(word_at + t * panel);
#ifdef PER4
      sums = dots(sums, codes_of(words), bytes[t]);
#else
      let even = words & vec4<u32>(0x0F0F0F0Fu);
      let odd = (words >> vec4<u32>(4u)) & vec4<u32>(0x0F0F0F0Fu);
      sums = dots(dots(sums, even, bytes[2u * t]), odd, bytes[2u * t + 1u]);
#endif
    }
#ifdef NESTED
    let s = e0m_decode(e0m_nested(pair_at, g / SPAN, panel, DEPTH));
    total += factors[g].x / CODES_UNIT * vec4<f32>(sums) * s.scale
        + factors[g].y * e0m_weight(vec4<f32>(LEAST_LEVEL), s.scale, s.rest);
#else
    let s = e0m_scales(pairs_at(pair_at + g / SPAN * panel));
    total += s.scale * (factors[g].x / CODES_UNIT * vec4<f32>(sums) + factors[g].y * (LEAST_LEVEL - s.bias));
#endif
  }
  return total;
}

// Quantizes block g to bytes.
fn to_bytes(g: u32) {
  let at = g * GROUP / 4u;
  let end = min(at + GROUP / 4u, DEPTH / 4u);
  var high = vec4<f32>();
  for (var i = at; i < end; i++) { high = max(high, abs(value(i))); }
  let most = max(max(high.x, high.y), max(high.z, high.w));
  let inverse = select(0.0, 127.0 / most, most > 0.0);
  var sums = vec4<i32>();
#ifdef PER4
  for (var i = at; i < end; i++) {
    let c = vec4<i32>(round(value(i) * inverse));
    sums += c;
    bytes[i] = bytes_word(c.x, c.z, c.y, c.w);
  }
#else
  for (var i = at; i < end; i += 2u) {
    let c = vec4<i32>(round(value(i) * inverse));
    let d = vec4<i32>(round(value(i + 1u) * inverse));
    sums += c + d;
    bytes[i] = bytes_word(c.x, d.x, c.y, d.y);
    bytes[i + 1u] = bytes_word(c.z, d.z, c.w, d.w);
  }
#endif
  let scale = most / 127.0;
  factors[g] = vec2<f32>(scale, scale * f32(sums.x + sums.y + sums.z + sums.w));
}

@compute @workgroup_size(WG)
fn matvec_e0m_int8(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
  for (var g = lid; g < BLOCKS; g += WG) { to_bytes(g); }
#ifdef HAS_GAIN
  var square = 0.0;
  for (var i = lid; i < DEPTH / 4u; i += WG) { square += dot(x_at4(i), x_at4(i)); }
  squares[lid] = square;
#endif
  workgroupBarrier();
  var norm = 1.0;
#ifdef HAS_GAIN
  square = 0.0;
  for (var i = 0u; i < WG; i++) { square += squares[i]; }
  norm = inverseSqrt(square / f32(DEPTH) + p.epsilon);
#endif
  let lane = lid % LANES;
  let j = (group.x * LANES + lane) * COLS;
  let column = select(0u, j, j < p.n);
  let slice = lid / LANES;
#ifdef HAS_CODES2
  takes_second = slice % 2u == 1u;
#endif
  part[lid] = product(column, slice / SIDES, SLICES / SIDES) * norm;
  workgroupBarrier();
  if (lid < LANES) {
    var v = vec4<f32>();
    var u = vec4<f32>();
    for (var i = 0u; i < SLICES; i += SIDES) { v += part[i * LANES + lid]; }
    for (var i = 1u; i < SLICES; i += 2u) { u += part[i * LANES + lid]; }
    put(j, v, u);
  }
}
